#!/usr/bin/env bash
# Tests on a machine with a GPU that has no Rust.
#
#   scripts/gpu.sh pack           where Rust is: builds the binaries into .gpu/ (ignored by git, well under 60 MiB)
#   scripts/gpu.sh run [OUTDIR]   where the GPU is: runs them from .gpu/, logs in OUTDIR (default .gpu/logs)
#
# The binaries carry the kernels they need. `run` ends with a table and exits with 1 if anything failed.
set -euo pipefail
cd "$(dirname "$0")/.."

limit_mib=60

pack() {
    cargo build --locked --release -p simtile-cts -p simtile-examples -p xtask --bins
    rm -rf .gpu
    mkdir -p .gpu
    local target=${CARGO_TARGET_DIR:-target}
    for binary in simtile-cts inter_kernel async_pipeline vector_add xtask; do
        # Line tables are for profiling here; they would be most of what travels.
        strip -o ".gpu/$binary" "$target/release/$binary"
    done
    git rev-parse HEAD >.gpu/revision 2>/dev/null || true
    local mib
    mib=$(($(du -sk .gpu | cut -f1) / 1024))
    if [ "$mib" -ge "$limit_mib" ]; then
        echo "gpu.sh: .gpu has $mib MiB, the limit is $limit_mib" >&2
        exit 1
    fi
    echo ".gpu: $mib MiB"
    ls -l .gpu
}

rows=()
failed=0

# step NAME SECONDS COMMAND...: one line of the table, one log.
step() {
    local name=$1 seconds=$2
    shift 2
    local log="$out/$name.log" start=$SECONDS code=0
    timeout --kill-after=10 "$seconds" "$@" >"$log" 2>&1 </dev/null || code=$?
    local note
    note=$(tail -n 1 "$log" | cut -c 1-90)
    local verdict=ok
    if [ "$code" -ne 0 ]; then
        verdict="FAILED ($code)"
        failed=1
    fi
    rows+=("$(printf '%-26s %-13s %5s s  %s' "$name" "$verdict" "$((SECONDS - start))" "$note")")
}

skip() {
    rows+=("$(printf '%-26s %-13s          %s' "$1" "skipped" "$2")")
}

run() {
    out=${1:-.gpu/logs}
    mkdir -p "$out"
    if [ ! -x .gpu/simtile-cts ]; then
        echo "gpu.sh: .gpu/simtile-cts is missing; run scripts/gpu.sh pack where Rust is" >&2
        exit 1
    fi
    # Multicast over NVLink stays off, whatever a library on this machine would like.
    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
    # The real driver, or an error: nothing here may fall back to the simulator.
    export SIMTILE_DRIVER=cuda

    {
        cat .gpu/revision 2>/dev/null || true
        uname -srm
        nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv 2>&1 || true
    } >"$out/machine.txt"

    step cts 1500 .gpu/simtile-cts run --driver cuda --verbose --json-file "$out/cts.json"
    step inter_kernel 120 .gpu/inter_kernel
    step inter_kernel-ragged 120 .gpu/inter_kernel --rows 1023 --cols 997
    step inter_kernel-one 120 .gpu/inter_kernel --rows 1 --cols 1
    step async_pipeline 120 .gpu/async_pipeline
    step vector_add 120 .gpu/vector_add
    step endings 120 .gpu/simtile-cts endings --driver cuda --times 3
    # Both drivers in one go: the simulator needs seconds.
    step differential 560 .gpu/xtask differential --out "$out/differential"

    local sanitizer
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
    if [ -n "$sanitizer" ]; then
        # Errors that a test provokes on purpose are no findings; bad accesses are.
        local memcheck=("$sanitizer" --tool memcheck --target-processes all --report-api-errors no
            --error-exitcode 9)
        step memcheck-inter_kernel 300 "${memcheck[@]}" .gpu/inter_kernel --rows 67 --cols 997
        step memcheck-async_pipeline 300 "${memcheck[@]}" .gpu/async_pipeline
        step memcheck-artifacts 600 "${memcheck[@]}" .gpu/simtile-cts run --driver cuda --watchdog 180 --filter artifacts
        step memcheck-core_launches 600 "${memcheck[@]}" .gpu/simtile-cts run --driver cuda --watchdog 180 --filter core_launches
        step memcheck-core_buffers 600 "${memcheck[@]}" .gpu/simtile-cts run --driver cuda --watchdog 180 --filter core_buffers
    else
        skip memcheck "compute-sanitizer is not here"
    fi

    grep -hE '^(FAIL|skip) ' "$out/cts.log" >"$out/cts-not-passed.txt" || true
    echo
    cat "$out/machine.txt"
    echo
    grep -h '^FAIL ' "$out"/*.log | cut -c 1-300 || true
    grep -h 'passed, .* failed, .* skipped' "$out/cts.log" || true
    echo
    printf '%s\n' "${rows[@]}"
    exit "$failed"
}

case "${1:-}" in
    pack) pack ;;
    run) shift; run "$@" ;;
    *)
        sed -n '2,7p' "$0" | cut -c 3-
        exit 2
        ;;
esac
