sluice_fuzzer(sse SOURCES fuzz_sse.c DEPS sluice_cli_http)
