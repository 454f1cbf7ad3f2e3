sluice_fuzzer(chat_template
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_chat_template.c ${CMAKE_SOURCE_DIR}/tests/unit/text/vocabulary_maker.c
  DEPS sluice_text sluice_model sluice_base PkgConfig::JANSSON)
