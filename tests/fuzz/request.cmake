# A request as a coordinator takes it, from the bytes of its message to the engine's door (coordinator/request.h).
sluice_fuzzer(request
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_request.c ${CMAKE_SOURCE_DIR}/tests/unit/text/vocabulary_maker.c
  DEPS sluice_service)
