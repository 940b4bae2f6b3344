#!/bin/sh
# Both parts on the GPU of this machine, offline, in 20 minutes at most; part (a) first, so that a short time gives it.
#   benchmarks/gpu/run.sh                          results into docs/measurements/
#   benchmarks/gpu/run.sh --part a --out DIR       only equality, conformance, interrupts, remap, graphs
#   benchmarks/gpu/run.sh --interpret --out DIR    tiny shapes by Triton's interpreter, on a machine without a GPU
set -eu
cd "$(dirname "$0")/../.."
case " $* " in *" --interpret "*) export TRITON_INTERPRET=1 ;; esac
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
