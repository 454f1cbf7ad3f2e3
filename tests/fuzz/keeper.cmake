sluice_fuzzer(keeper SOURCES fuzz_keeper.c DEPS sluice_gateway_shapes)
