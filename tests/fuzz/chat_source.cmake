# Which chat template serves a model (common/text/chat_source.h). Files are those of the input.
sluice_fuzzer(chat_source
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_chat_source.c ${CMAKE_SOURCE_DIR}/tests/unit/text/vocabulary_maker.c
  DEPS sluice_text sluice_model sluice_base)
target_link_options(fuzz_chat_source PRIVATE -Wl,--wrap=fopen)
