// Threads that compute calls one after another, beside the caller's thread and together with it.
//
// A call that was begun is computed by the team's threads at once, while the caller does something else; where the caller
// needs the result it joins in. Work is cut into phases of tasks that threads take one by one, so whoever comes late finds
// less to do, and whoever leaves early holds nothing up.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <immintrin.h>
#include <sched.h>

namespace {

constexpr int PAUSES = 2000; // before a thread that waits gives its core away

// When a thread that computes turns to something else.
class Until {
  public:
    Until() = default; // never
    explicit Until(double seconds)
        : is_bound_(seconds >= 0), at_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                          std::chrono::duration<double>(std::max(seconds, 0.0)))) {}
    bool passed() const { return is_bound_ && Clock::now() >= at_; }

  private:
    using Clock = std::chrono::steady_clock;
    bool is_bound_ = false;
    Clock::time_point at_;
};

struct alignas(64) Phase {
    std::atomic<int64_t> next{0};
    alignas(64) std::atomic<int64_t> done{0};
};

// Takes tasks of a phase until all are taken, and waits until all are done: true. False: the time has passed before.
template <class F> static inline __attribute__((always_inline)) bool work(Phase &phase, int64_t tasks, const Until &until, F run) {
    if (phase.done.load(std::memory_order_acquire) >= tasks) return true;
    for (;;) {
        const int64_t task = phase.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= tasks) break;
        run(task);
        phase.done.fetch_add(1, std::memory_order_acq_rel);
        if (until.passed()) return false;
    }
    for (int turn = 0; phase.done.load(std::memory_order_acquire) < tasks; turn++) {
        if (turn < PAUSES) _mm_pause();
        else sched_yield(); // what is waited for may be a thread without a core
        if (turn % 64 == 63 && until.passed()) return false;
    }
    return true;
}

struct TeamCall {
    std::function<bool(const Until &)> compute; // for any number of threads at once; true: all of it is done
    int64_t threads = 1;                        // that compute it at most, the caller's among them
    int64_t ticket = 0;
};

// Owns the threads, which never end, and the calls that are not done.
class Team {
  public:
    // Of a process. It is not destroyed: its threads wait in it when the process ends.
    static Team &own() {
        static Team &team = *new Team;
        return team;
    }

    // The call's ticket: from 1 on, in order.
    int64_t begin(std::shared_ptr<TeamCall> call) {
        int64_t ticket;
        {
            const std::lock_guard<std::mutex> held(lock_);
            start_helpers(call->threads - 1);
            ticket = call->ticket = begun_.load(std::memory_order_relaxed) + 1;
            calls_.push_back(std::move(call));
            begun_.store(ticket, std::memory_order_release);
        }
        changed_.notify_all();
        return ticket;
    }

    // Computes calls up to that ticket, of all of them if it is 0, for so many seconds at most if not negative; returns
    // whether they are done.
    bool join(int64_t ticket, double most_s) {
        const int64_t last = ticket ? ticket : begun_.load(std::memory_order_acquire);
        const Until until(most_s);
        for (;;) {
            const std::shared_ptr<TeamCall> call = first();
            if (!call || call->ticket > last) return true;
            if (!call->compute(until)) return false;
            finish(*call);
        }
    }

  private:
    void start_helpers(int64_t wanted) {
        try {
            for (; helpers_ < wanted; helpers_++) std::thread(&Team::help, this, helpers_ + 1).detach();
        } catch (const std::system_error &) { // no more threads: there are fewer
        }
    }

    void help(int64_t number) {
        for (;;) {
            const std::shared_ptr<TeamCall> call = next(number);
            call->compute(Until());
            finish(*call);
        }
    }

    // Waits for a call that this thread may compute. The next step of a text is soon: for a moment it keeps its core.
    std::shared_ptr<TeamCall> next(int64_t number) {
        for (int turn = 0; turn < PAUSES && finished_.load(std::memory_order_acquire) == begun_.load(std::memory_order_acquire); turn++)
            _mm_pause();
        std::unique_lock<std::mutex> held(lock_);
        changed_.wait(held, [&] { return !calls_.empty() && number < calls_.front()->threads; });
        return calls_.front();
    }

    std::shared_ptr<TeamCall> first() {
        const std::lock_guard<std::mutex> held(lock_);
        return calls_.empty() ? nullptr : calls_.front();
    }

    void finish(const TeamCall &call) {
        {
            const std::lock_guard<std::mutex> held(lock_);
            if (calls_.empty() || calls_.front()->ticket != call.ticket) return; // another thread was first
            calls_.pop_front();
            finished_.store(call.ticket, std::memory_order_release);
        }
        changed_.notify_all();
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<TeamCall>> calls_; // that are not done, in order; only the first is computed
    std::atomic<int64_t> begun_{0}, finished_{0};
    int64_t helpers_ = 0;
};

// Memory of calls that are done, for those that come.
class Rooms {
  public:
    static Rooms &own() {
        static Rooms &rooms = *new Rooms;
        return rooms;
    }

    std::vector<char> take(size_t bytes) {
        std::vector<char> room;
        {
            const std::lock_guard<std::mutex> held(lock_);
            if (!spare_.empty()) {
                room = std::move(spare_.back());
                spare_.pop_back();
            }
        }
        if (room.size() < bytes) room.resize(bytes);
        return room;
    }

    void give(std::vector<char> room) {
        const std::lock_guard<std::mutex> held(lock_);
        spare_.push_back(std::move(room));
    }

  private:
    std::mutex lock_;
    std::vector<std::vector<char>> spare_;
};

} // namespace
