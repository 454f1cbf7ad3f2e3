# The map of KV blocks alone: the test pipeline uses it too (tests/lib).
sluice_library(sluice_blocks SOURCES blocks.c blocks_window.c blocks_check.c blocks_window_check.c block_pool.c prefix_map.c kv_groups.c
  DEPS sluice_model sluice_base)

# What decides, without threads, sockets or clocks: the engine's parts that tests and the simulation run alone.
sluice_library(sluice_planner
  SOURCES admission.c admission_clients.c admission_order.c admission_rate.c
    slots.c cost_model.c scheduler.c
    sched_plan.c sched_budget.c sched_rows.c sched_pieces.c sched_bank.c
    stage_table.c pipeline.c pipeline_machine.c pipeline_attach.c pipeline_messages.c
  DEPS sluice_blocks sluice_wire sluice_base sluice_model)
