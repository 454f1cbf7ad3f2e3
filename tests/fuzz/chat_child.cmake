# What the process that renders chat templates may say (common/text/chat_child.h, chat_template.h). There is no process: starts, ends
# and time are the target's.
sluice_fuzzer(chat_child
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_chat_child.c ${CMAKE_SOURCE_DIR}/tests/unit/text/vocabulary_maker.c
  DEPS sluice_text sluice_model sluice_base)
target_link_options(fuzz_chat_child PRIVATE
  -Wl,--wrap=chat_child_start,--wrap=chat_child_stop,--wrap=chat_child_send,--wrap=poll,--wrap=clock_now_ns)
