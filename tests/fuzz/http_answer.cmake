sluice_fuzzer(http_answer SOURCES fuzz_http_answer.c DEPS sluice_cli_http)
