#!/usr/bin/env bash
# Installs the packages for Starling's build ("build") and its device tests ("test") that this machine lacks. On Debian
# and Ubuntu it says so and installs them. Elsewhere it names them and goes on; the build fails if they are missing.
set -euo pipefail

# libclang-cpp, which a Vulkan driver may install, is another library.
have_libclang() {
  [ -n "${LIBCLANG_PATH:-}" ] || [ "$(uname)" = Darwin ] ||
    { ldconfig -p 2>/dev/null; compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' || true; } | grep -E '/libclang(-[0-9.]+)?\.so' >/dev/null
}
have_compiler() { command -v c++ >/dev/null && command -v cc >/dev/null; }
have_vulkan() { compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null || [ "$(uname)" = Darwin ]; }

missing=()
for what in "$@"; do
  case $what in
    build)
      have_compiler || missing+=(g++)
      have_libclang || missing+=(libclang-dev)
      ;;
    test) have_vulkan || missing+=(mesa-vulkan-drivers) ;;
    *) echo "usage: $0 [build] [test]" >&2; exit 2 ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

if command -v apt-get >/dev/null; then
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "please install: ${missing[*]} (no root and no sudo here)" >&2; exit 1; }
    sudo="sudo"
  fi
  echo "installing what is missing: ${missing[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
elif command -v dnf >/dev/null; then
  echo "Fedora (untested): sudo dnf install gcc-c++ clang-devel mesa-vulkan-drivers" >&2
elif [ "$(uname)" = Darwin ]; then
  echo "macOS (untested): xcode-select --install" >&2
else
  echo "please install a C++ compiler, libclang and, for device tests, a Vulkan driver: ${missing[*]}" >&2
fi
