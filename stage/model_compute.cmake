# The model side of a stage: weights, KV pool, forward, sampler behind stage/compute.h.
sluice_library(sluice_model_compute
  SOURCES calibrate.c forward.c forward_buffers.c forward_experts.c model_compute.c model_needs.c sampler.c sampler_logprobs.c weights.c
  DEPS sluice_kv sluice_kernels sluice_model sluice_wire m)
# Loops over a vocabulary of logits; the order of their sums is written down, so vectors change no bit.
set_source_files_properties(sampler.c sampler_logprobs.c PROPERTIES COMPILE_OPTIONS "-O3;-fno-trapping-math")
