#!/usr/bin/env bash
# Installs everything that building, running and testing k3 needs on Debian 12 or later. Run as root, or with sudo
# at hand. Installed packages are left alone, so a second run takes a second. With the word `page`, also Chromium, which
# the test of the server's page runs.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
    build-essential cmake ninja-build ccache pkg-config   # build
    clang                                                 # second compiler, fuzzers (its run-time library: below)
    libcmocka-dev                                         # unit tests
    libmicrohttpd-dev libcurl4-openssl-dev                # HTTP server, image URLs
    libjpeg62-turbo-dev libpng-dev libwebp-dev libgif-dev # image formats
    libxxhash-dev libssl-dev                              # hashes of token blocks and pictures
    libedit-dev                                           # terminal editing
    scdoc pmccabe                                         # man pages, length of functions
    python3 python3-numpy python3-pil python3-venv        # checkpoint maker, black-box tests
)
[ "${1:-}" != page ] || packages+=(chromium)
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive

updated=no
install() {
    local p missing=()
    for p in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "setup: installing ${missing[*]}"
    [ $updated = yes ] || $sudo apt-get update -qq
    updated=yes
    $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install "${packages[@]}"
# The sanitizers and libFuzzer of clang come in a package that carries its version: 14 in Debian 12.
install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"

# yyjson: packaged from Debian 13 on. On Debian 12 its two packages (they need only an old libc) are fetched from
# Debian 13 through a private package list and unpacked under build/deps.
multiarch=$(gcc -print-multiarch)
if [ ! -e build/deps/usr/include/yyjson.h ] && [ ! -e /usr/include/yyjson.h ]; then
    if apt-cache show libyyjson-dev >/dev/null 2>&1; then
        $sudo apt-get install -y -qq --no-install-recommends libyyjson-dev >/dev/null
    else
        echo "setup: unpacking yyjson from Debian 13 under build/deps"
        apt=build/deps/apt
        mkdir -p $apt/lists/partial $apt/cache/archives/partial
        top=$PWD/$apt
        echo "deb http://deb.debian.org/debian trixie main" >"$top/sources.list"
        opts=(-qq -o "Dir::Etc::sourcelist=$top/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$top/lists"
              -o "Dir::Cache=$top/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
        apt-get "${opts[@]}" update
        (cd $apt && apt-get "${opts[@]}" download libyyjson0 libyyjson-dev)
        for deb in $apt/*.deb; do dpkg -x "$deb" build/deps; done
        rm -rf $apt
        [ -e "build/deps/usr/lib/$multiarch/libyyjson.so" ]
    fi
fi
