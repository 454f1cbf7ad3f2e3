sluice_fuzzer(api_keys SOURCES fuzz_api_keys.c DEPS sluice_gateway_shapes)
