sluice_fuzzer(holder SOURCES fuzz_holder.c DEPS sluice_deploy)
