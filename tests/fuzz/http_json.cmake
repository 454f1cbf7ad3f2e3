sluice_fuzzer(http_json SOURCES fuzz_http_json.c DEPS sluice_gateway_shapes)
