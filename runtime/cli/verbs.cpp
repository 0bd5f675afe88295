#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/cli/loading.h"
#include "runtime/cli/places.h"
#include "runtime/generate/session.h"

namespace dspack::runtime {

void add_pass_tokens(format::OptionTable& table, PassTokens& tokens) {
  auto ids = add_tokens(table, tokens);
  table.add("-p,--prompt", "TEXT", tokens.prompt, "A question; - reads it from standard input").excludes(ids);
  table.flag("--raw", tokens.raw, "Take the text as it is, without the chat template").excludes(ids);
}

void add_pass_model_options(format::OptionTable& table, LoadOptions& load) {
  add_model_options(table, load, "Positions to keep room for (default: as many as there are tokens)");
}

Result<std::vector<uint32_t>> tokens_of(const PassTokens& asked, const std::string& folder, const RemoteAccess& remote,
                                        const std::stop_token& stop) {
  if (!asked.prompt) return read_tokens(asked);
  TRY_ASSIGN(std::string prompt, read_prompt(*asked.prompt));
  TRY_ASSIGN(const auto access, open_place(folder, remote, stop));
  TRY_ASSIGN(const TextModel text, TextModel::load(access->files(), stop));
  TRY_ASSIGN(EncodedPrompt encoded, encode_prompt(text, std::move(prompt), asked.raw, {}, {}, stop));
  return std::move(encoded.tokens);
}

Result<std::unique_ptr<LoadedModel>> load_for(const std::string& folder, LoadOptions options,
                                              std::span<const uint32_t> tokens, const std::stop_token& stop) {
  if (!options.context) options.context = static_cast<uint32_t>(std::max<size_t>(tokens.size(), 1));
  TRY_ASSIGN(auto loaded, load_model(folder, options, stop));
  const uint32_t most = loaded->model().max_rows();
  if (tokens.size() <= most || tokens.size() > loaded->model().context()) return loaded;  // the session fails
  return Error{ErrorKind::invalid, fmt::format("{} tokens; all of them must go through the model at once, which takes "
                                               "at most {}",
                                               tokens.size(), most)};
}

Result<void> run_traced(LoadedModel& loaded, std::span<const uint32_t> tokens, Trace& trace,
                        const std::stop_token& stop) {
  TRY_ASSIGN(Session session, loaded.start_session());
  auto done = session.logits(
      tokens, 0, [](std::span<const float>) {}, stop, &trace);
  TRY(trace.status());  // the trace's error, if that ended the pass
  return done;
}

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
