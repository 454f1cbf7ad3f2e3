sluice_fuzzer(pieces SOURCES fuzz_pieces.c DEPS sluice_gateway_shapes)
