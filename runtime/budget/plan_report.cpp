#include "runtime/budget/plan_report.h"

namespace dspack::runtime {

format::Json to_json(const MemoryPlan& plan) {
  format::Json streamed = format::Json::array();
  for (const LayerId layer : plan.streamed)
    streamed.push_back(layer.value);
  format::Json json = {{"limit", plan.limit_bytes ? format::Json(*plan.limit_bytes) : format::Json()},
                       {"total", plan.total_bytes()},
                       {"bytes",
                        {{"process", plan.process_bytes},
                         {"reserve", plan.reserve_bytes},
                         {"decompression", plan.decompression_bytes},
                         {"head", plan.head_bytes},
                         {"mtp", plan.mtp_bytes},
                         {"kv_cache", plan.kv_bytes},
                         {"activations", plan.activation_bytes},
                         {"layers", plan.resident_layer_bytes},
                         {"layer_buffers", plan.layer_buffer_bytes},
                         {"slots", plan.slot_bytes},
                         {"staging", plan.staging_bytes}}},
                       {"slots", plan.slot_count},
                       {"experts", plan.experts},
                       {"experts_per_token", plan.experts_per_token},
                       {"token_bytes", plan.token_bytes},
                       {"streamed_layers", std::move(streamed)},
                       {"streamed_bytes", plan.streamed_bytes},
                       {"chunk_rows", plan.max_rows}};
  if (plan.vram) json["vram"] = to_json(*plan.vram);
  return json;
}

}  // namespace dspack::runtime
