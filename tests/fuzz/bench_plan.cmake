sluice_fuzzer(bench_plan SOURCES fuzz_bench_plan.c DEPS sluice_cli_bench)
