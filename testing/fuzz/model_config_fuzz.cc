// SPDX-License-Identifier: Apache-2.0

// config.json, from a checkpoint that somebody gave us.
#include "core/layout/model_config.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {

std::vector<std::string> Seeds() {
  return {R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100,
              "head_dim": null, "tie_word_embeddings": true})",
          R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100, "head_dim": 8,
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
              "activation_scheme": "dynamic", "weight_block_size": [128, 128],
              "modules_to_not_convert": ["lm_head", "\u00e9"], "kv_cache_scheme": {"a": [1.5e3]}}})",
          R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64,
              "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
              "n_shared_experts": 1, "num_hidden_layers": 2, "num_attention_heads": 8,
              "vocab_size": 100, "q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
              "qk_rope_head_dim": 4, "v_head_dim": 10, "first_k_dense_replace": 1})",
          R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "num_experts": 8,
              "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
              "vocab_size": 100, "decoder_sparse_step": 2, "mlp_only_layers": [1, 0]})",
          R"({"architectures": ["GptOssForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
              "num_local_experts": 8, "num_hidden_layers": 2, "num_attention_heads": 8,
              "vocab_size": 100, "quantization_config": {"quant_method": "mxfp4"}})",
          R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12,
              "n_positions": 1024, "n_inner": null, "vocab_size": 50257})"};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = waybill::ParseModelConfig({reinterpret_cast<const char*>(data), size});
  waybill::fuzz::Require(config.ok() || config.status().message().size() < 1000,
                         "an error is short, however long the file");
  return 0;
}
