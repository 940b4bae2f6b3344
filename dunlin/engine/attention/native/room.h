// Memory that stays with a thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

template <class T> class Room {
  public:
    // Place for `count`, from a cache line's start on: vectors and lines of tiles that cross one take twice as long. What was
    // there before is lost where there is not enough.
    T *of(size_t count) {
        const size_t bytes = count * sizeof(T) + LINE;
        if (bytes_.size() < bytes) bytes_.resize(bytes);
        const uintptr_t at = reinterpret_cast<uintptr_t>(bytes_.data());
        return reinterpret_cast<T *>((at + LINE - 1) / LINE * LINE);
    }

  private:
    static constexpr size_t LINE = 64;
    std::vector<char> bytes_;
};

} // namespace
