#!/bin/bash
# Builds deploy/Dockerfile as it stands and tries what came of it, on a Debian machine without Docker or a registry of
# images: `apt-get install buildah podman runc debootstrap`, then, as root,
#
#   deploy/check_image.sh FOLDER        # an empty or earlier folder on a disk with 8 GB free; minutes
#
# A Debian root by debootstrap with Debian's Python 3.11 stands for the base image python:3.11-slim; buildah runs the
# recipe's own instructions, podman the image. Variables:
#
#   PIP_CONF=FILE       a pip.conf that the build reads (a mirror, certificates), mounted and not copied
#   BUILD_FLAGS=...     further flags of `buildah build`, such as --volume=/opt/mirror:/opt/mirror:ro
#   BUILD=no            try the image that an earlier call has built in FOLDER
#   DRIVER=vfs          where overlay mounts are not allowed (default: overlay)
set -euo pipefail

folder="$(realpath "${1:?usage: deploy/check_image.sh FOLDER}")"
repository="$(realpath "$(dirname "$0")/..")"
base=docker.io/library/python:3.11-slim
name="dunlin-check-$$"
mkdir -p "$folder"
export CONTAINERS_STORAGE_CONF="$folder/storage.conf"
printf '[storage]\ndriver = "%s"\ngraphroot = "%s"\nrunroot = "%s"\n' \
    "${DRIVER:-overlay}" "$folder/storage" "$folder/run" >"$CONTAINERS_STORAGE_CONF"

step() { printf '\n== %s\n' "$*"; }
fail() { echo "check_image: $*" >&2; exit 1; }
# Limits said outright: podman's own are higher than those that a machine in a container may set.
podman_run() {
    podman --runtime runc --cgroup-manager cgroupfs run --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
        --network none --cap-drop all --security-opt no-new-privileges --read-only --tmpfs /tmp "$@"
}
cleanup() {
    podman --runtime runc rm --force --time 0 "$name" >/dev/null 2>&1 || true
    podman volume rm --force "$name" >/dev/null 2>&1 || true
}
trap cleanup EXIT

make_base() {
    [ -e "$folder/base/usr/bin/python3" ] ||
        debootstrap --variant=minbase --include=python3,python3-pip,python-is-python3,ca-certificates bookworm "$folder/base" \
            >"$folder/debootstrap.log"
    # Debian refuses `pip install` beside its own packages; the base image has no such mark.
    rm -f "$folder"/base/usr/lib/python3*/EXTERNALLY-MANAGED "$folder"/base/var/cache/apt/archives/*.deb
    local work
    work="$(buildah from scratch)"
    buildah add --quiet "$work" "$folder/base" / >/dev/null
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$work"
    buildah commit --quiet --rm --format docker "$work" "$base" >/dev/null
}

build() {
    local mounts=()
    [ -z "${PIP_CONF:-}" ] || mounts=(--volume "$PIP_CONF:/etc/pip.conf:ro")
    # shellcheck disable=SC2086
    buildah build --pull-never --isolation chroot --format docker --file "$repository/deploy/Dockerfile" \
        --ignorefile "$repository/deploy/Dockerfile.dockerignore" "${mounts[@]}" ${BUILD_FLAGS:-} \
        --tag dunlin "$repository" >"$folder/build.log" 2>&1 || { tail -20 "$folder/build.log" >&2; fail "the build failed"; }
    grep -E '^(\[[0-9]/[0-9]\] )?STEP' "$folder/build.log"
}

if [ "${BUILD:-yes}" = yes ]; then
    step "base image from Debian's archive"
    buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
    step "deploy/Dockerfile"
    build
fi
podman image inspect dunlin --format '{{.Size}} bytes; user {{.User}}; entry point {{.Config.Entrypoint}}'

step "as whom it runs, and what it says"
podman_run --rm --entrypoint id dunlin
podman_run --rm dunlin version
podman_run --rm dunlin sim --workload 'poisson:rate=4,duration=20' --instances 2

step "nothing of the build is left"
left="$(podman_run --rm --entrypoint sh dunlin -c \
    'find / -xdev \( -name pip.conf -size +0 -o -name "*.whl" -o -name ".netrc" -o -name "*.lock" -path "/wheels/*" \) 2>/dev/null; ls -d /src /wheels 2>/dev/null; true')"
[ -z "$left" ] || fail "left in the image: $left"
! podman image inspect dunlin --format '{{.Config.Env}}' | grep -i -E 'pip_|token|password' || fail "the environment tells of the build"
echo "no pip.conf, no wheel, no source, no variable of pip"

step "a cluster in one container: the root read-only, one volume for data"
podman volume create "$name" >/dev/null
podman_run --detach --name "$name" --volume "$name:/var/lib/dunlin" \
    --health-cmd 'dunlin health 127.0.0.1:7070' --health-interval disable \
    dunlin up --instances 1 --threads 1 --data-dir /var/lib/dunlin/up >/dev/null
for _ in $(seq 180); do
    podman logs "$name" 2>&1 | grep -q '^ready' && break
    [ "$(podman inspect "$name" --format '{{.State.Running}}')" = true ] || { podman logs "$name" >&2; fail "it ended"; }
    sleep 1
done
podman logs "$name" 2>&1 | grep '^ready' || fail "not ready after 180 s"
podman exec "$name" dunlin generate "The harbour" --max-tokens 8 --endpoint 127.0.0.1:7070
podman exec "$name" python -c 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:8000/health").read().decode())'
podman healthcheck run "$name" || fail "its health check failed"
echo "its health check passes"
podman exec "$name" sh -c 'touch /usr/local/bin/x 2>/dev/null' && fail "its root can be written"

step "SIGTERM"
podman --runtime runc stop --time 20 "$name" >/dev/null
code="$(podman inspect "$name" --format '{{.State.ExitCode}}')"
[ "$code" = 0 ] || { podman logs --tail 20 "$name" >&2; fail "it ended with code $code"; }
echo "ended with code 0"
