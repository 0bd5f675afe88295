#include "runtime/cli/peer_options.h"

namespace dspack::runtime {

std::vector<format::PeerOption> peer_options() {
  return {
      {{"-m", "--model", "--model-path"}, "", "the model's folder or address comes first, without one: dsrun DIR"},
      {{"-hf", "-hfr", "--hf-repo"}, "", "a repository on the Hub comes first, without one: dsrun hf://org/name"},
      {{"-c", "--ctx-size", "--max-model-len", "--context-length"}, "--ctx"},
      {{"-t", "-tb", "--threads-batch"}, "--threads"},
      {{"-f", "--file"}, "", "a prompt is read from standard input: dsrun DIR -p - < FILE"},
      {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "--device", "--device cuda takes what fits, and --vram bounds it"},
      {{"-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"}, "--vram-experts"},
      {{"-mg", "--main-gpu", "-ts", "--tensor-split", "-tp", "--tp", "--tensor-parallel-size"},
       "--device",
       "several GPUs are --device cuda:0,1"},
      {{"--gpu-memory-utilization", "--mem-fraction-static"}, "--vram", "a share is written as 90%"},
      {{"--predict", "--n-predict", "--max-tokens", "--max-new-tokens"}, "-n"},
      {{"-s"}, "--seed"},
      {{"--repeat-penalty"}, "--repetition-penalty"},
      {{"-l"}, "--logit-bias"},
      {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"}, "--kv-dtype"},
      {{"-sys", "--system-prompt"}, "--system"},
      {{"-sysf", "--system-prompt-file"}, "--system", "a file is @FILE"},
      {{"-cnv", "--conversation", "-i", "--interactive"}, "", "without a prompt, dsrun DIR is a chat"},
      {{"--chat-template-file"}, "--chat-template"},
      {{"--chat-template-kwargs"}, "--template-args"},
      {{"--jinja"}, "", "chat templates are always run; leave it out"},
      {{"-np", "--max-num-seqs"}, "--parallel"},
      {{"-a", "--alias", "--served-model-name"}, "--model-name"},
      {{"--allowed-origins"}, "--allow-origin"},
      {{"--enable-prefix-caching"}, "--cache-ram", "it takes a size"},
      {{"--draft-max", "--num-speculative-tokens"}, "--mtp"},
  };
}

}  // namespace dspack::runtime
