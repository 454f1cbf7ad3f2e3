sluice_fuzzer(resume_token SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_resume_token.c DEPS sluice_engine)
