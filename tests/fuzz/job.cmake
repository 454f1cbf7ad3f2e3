sluice_fuzzer(job SOURCES ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_job.c DEPS sluice_deploy PkgConfig::CRYPTO)
