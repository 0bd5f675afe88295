#!/usr/bin/env bash
# Makes all checkpoints from nothing: everything.sh ENVIRONMENTS FOLDER
# installs the writers below ENVIRONMENTS (12 GB), where they are not yet, and has each write its kinds into FOLDER.
# Writers need packages that exclude each other, so each has an environment of its own, which sees PyTorch of the first.
set -euo pipefail
[ $# = 2 ] || { echo "usage: everything.sh ENVIRONMENTS FOLDER" >&2; exit 2; }
mkdir -p "$1" "$2"
environments=$(cd "$1" && pwd) folder=$(cd "$2" && pwd) here=$(cd "$(dirname "$0")" && pwd)
export CUDA_VISIBLE_DEVICES="" BUILD_CUDA_EXT=0 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3.11}

# environment NAME PACKAGE ...: behind its own packages it sees those of "base".
environment() {
  local name=$1 place=$environments/$1
  shift
  [ ! -e "$place/done" ] || return 0
  "$python" -m venv --clear "$place"
  if [ "$name" != base ]; then
    "$environments/base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      > "$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_base.pth"
  fi
  "$place/bin/pip" install -q -U setuptools wheel
  "$place/bin/pip" install -q --no-build-isolation "$@"
  touch "$place/done"
}

# alone NAME PACKAGE ...: what would pull other versions of what it needs
alone() {
  local name=$1
  shift
  [ -e "$environments/$name/alone" ] || "$environments/$name/bin/pip" install -q --no-deps --no-build-isolation "$@"
  touch "$environments/$name/alone"
}

environment base torch==2.13.0 transformers==5.23.0 compressed-tensors==0.20.0 accelerate==1.15.0 numpy==2.4.6 \
  safetensors==0.8.0 bitsandbytes==0.50.2 torchao==0.18.0 optimum==2.3.0
environment old transformers==4.51.3 huggingface_hub==0.30.2 peft==0.10.0 accelerate==1.6.0 datasets==4.4.1
alone old auto-gptq==0.7.1 rouge gekko sentencepiece autoawq==0.2.9
environment four transformers==4.57.6 huggingface_hub==0.36.0 accelerate==1.6.0
environment llmcompressor llmcompressor==0.14.0.1
environment modelopt nvidia-modelopt==0.47.0 requests
environment round auto-round==0.16.1
environment quark amd-quark==0.13 transformers==4.57.6 huggingface_hub==0.36.0 datasets==4.4.1
environment gptqmodel gptqmodel==7.7.0

cd "$environments"  # some of them write logs into the folder they are called in
failed=0
for pair in base:compressed_tensors base:transformers old:auto_gptq old:autoawq four:bitsandbytes \
  llmcompressor:llmcompressor modelopt:modelopt round:auto_round quark:quark gptqmodel:gptqmodel; do
  "$environments/${pair%%:*}/bin/python" "$here/make.py" "$folder" "${pair##*:}" || failed=1
done
exit $failed
