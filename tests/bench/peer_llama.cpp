// peer_llama: token ids through libllama, for compare_llama.py. One source for llama.cpp and ik_llama.cpp.
//
// Build, with the peer's source folder P and its libraries built in P/build by
//   cmake -S P -B P/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
//   cmake --build P/build --target llama
//   libs=$(find P/build/src P/build/ggml -name 'lib*.a')
//   g++ -std=c++20 -O2 -I P/include -I P/ggml/include peer_llama.cpp -o peer_llama $libs $libs -fopenmp -lpthread -ldl
// (the libraries are named twice since they need each other).
//
//   peer_llama MODEL.gguf --tokens 1,2,3 -n 32 --ctx 512 --threads 2 [--load mmap|read] [--repack on|off]
//
// Answers greedily and prints one line of JSON to stdout; what the library logs goes to stderr with --log. The model is
// mapped unless --load read. --repack: llama.cpp may copy weights into a layout of its own while it loads (on by
// default; off keeps them in the mapped file); in ik_llama.cpp it is --run-time-repack (off by default). On a processor
// with AMX llama.cpp 0.5.0-dev needs --repack off for models with latent attention: its AMX buffer takes attn_k_b and
// attn_v_b and cannot multiply by them ("GGML_ASSERT(*cur_backend_id != -1)"); --override-tensor does not keep them
// out. Other settings are the defaults of the peer's own programs. Exit status: 0 done, 1 failed, 2 usage.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMicroBatch = 512;  // tokens of a prompt computed at once: the default of both peers' programs

struct Options {
  std::string model;
  std::vector<llama_token> prompt;
  int predict = 32;
  int context = 512;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  bool mapped = true;
  std::string repack;  // "": the library's default
  bool log = false;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

[[noreturn]] void usage(const std::string& reason) {
  std::fprintf(stderr,
               "peer_llama: %s\nusage: peer_llama MODEL.gguf --tokens 1,2,3 -n N --ctx C --threads T "
               "[--load mmap|read] [--repack on|off] [--log]\n",
               reason.c_str());
  std::exit(2);
}

[[noreturn]] void fail(const std::string& reason) {
  std::fprintf(stderr, "peer_llama: %s\n", reason.c_str());
  std::exit(1);
}

int number(const std::string& text, int least) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > 1 << 30) usage("not a number in range: '" + text + "'");
  return static_cast<int>(value);
}

std::vector<llama_token> ids(const std::string& text) {
  std::vector<llama_token> found;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');)
    found.push_back(number(word, 0));
  return found;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int at = 1; at < argc; ++at) {
    const std::string flag = argv[at];
    if (flag == "--log") {
      options.log = true;
      continue;
    }
    if (!flag.starts_with("-")) {
      options.model = flag;
      continue;
    }
    if (at + 1 == argc) usage(flag + " needs a value");
    const std::string value = argv[++at];
    if (flag == "--tokens")
      options.prompt = ids(value);
    else if (flag == "-n")
      options.predict = number(value, 1);
    else if (flag == "--ctx")
      options.context = number(value, 1);
    else if (flag == "--threads")
      options.threads = number(value, 1);
    else if (flag == "--load" && (value == "mmap" || value == "read"))
      options.mapped = value == "mmap";
    else if (flag == "--repack" && (value == "on" || value == "off"))
      options.repack = value;
    else
      usage("unknown: " + flag + " " + value);
  }
  if (options.model.empty()) usage("a model is missing");
  if (options.prompt.empty()) usage("--tokens is missing");
  const size_t positions = options.prompt.size() + static_cast<size_t>(options.predict);
  if (positions > static_cast<size_t>(options.context)) {
    usage("prompt and answer take " + std::to_string(positions) + " positions: raise --ctx");
  }
  return options;
}

// Bytes that this process made the disk read, mapped pages and reading ahead included. 0 where the system does not say.
uint64_t disk_bytes() {
  std::ifstream io("/proc/self/io");
  for (std::string name; io >> name;) {
    uint64_t value = 0;
    io >> value;
    if (name == "read_bytes:") return value;
  }
  return 0;
}

uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// The peers' parameters differ: what a peer does not have is left out.
template <class Params>
void set_model(Params& params, const Options& options) {
  if constexpr (requires { params.load_mode; }) {
    constexpr int kNone = 0, kMapped = 1;  // LLAMA_LOAD_MODE_NONE and _MMAP, names that ik_llama.cpp does not know
    params.load_mode = static_cast<decltype(params.load_mode)>(options.mapped ? kMapped : kNone);
  } else {
    params.use_mmap = options.mapped;
  }
  if (options.repack.empty()) return;
  if constexpr (requires { params.use_extra_bufts; }) params.use_extra_bufts = options.repack == "on";
  if constexpr (requires { params.repack_tensors; }) {
    params.repack_tensors = options.repack == "on";
    if (params.repack_tensors) params.use_mmap = false;  // the mapped file cannot be changed: as its programs do
  }
}

template <class Params>
void set_context(Params& params) {
  if constexpr (requires { params.mla_attn; }) {  // of ik_llama.cpp, whose programs set these
    params.mla_attn = 3;
    params.flash_attn = true;
    params.fused_moe_up_gate = true;
  }
}

class Batch {
 public:
  explicit Batch(int size) : batch_(llama_batch_init(size, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Computes the tokens from `position` on; logits are wanted of the last one only. Returns the likeliest next token.
  llama_token next(llama_context* context, const std::vector<llama_token>& tokens, int position, int vocabulary) {
    batch_.n_tokens = static_cast<int>(tokens.size());
    for (int at = 0; at < batch_.n_tokens; ++at) {
      batch_.token[at] = tokens[at];
      batch_.pos[at] = position + at;
      batch_.n_seq_id[at] = 1;
      batch_.seq_id[at][0] = 0;
      batch_.logits[at] = at + 1 == batch_.n_tokens;
    }
    if (const int status = llama_decode(context, batch_); status != 0) {
      fail("llama_decode answered " + std::to_string(status) + " at position " + std::to_string(position));
    }
    const float* logits = llama_get_logits_ith(context, batch_.n_tokens - 1);
    return static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
  }

 private:
  llama_batch batch_;
};

void quiet(ggml_log_level, const char*, void*) {}

}  // namespace

int main(int argc, char** argv) {
  const auto started = Clock::now();
  const Options options = parse(argc, argv);
  if (!options.log) llama_log_set(quiet, nullptr);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  set_model(model_params, options);
  llama_model* model = llama_model_load_from_file(options.model.c_str(), model_params);
  if (!model) fail(options.model + ": the library does not load it; --log shows why");

  llama_context_params params = llama_context_default_params();
  const int prompt = static_cast<int>(options.prompt.size());
  params.n_ctx = options.context;
  params.n_batch = std::max(prompt, kMicroBatch);
  params.n_ubatch = kMicroBatch;
  params.n_threads = params.n_threads_batch = options.threads;
  set_context(params);
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail(options.model + ": no context of " + std::to_string(options.context) + " positions (see --log)");
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const double load = seconds_since(started);
  const uint64_t load_bytes = disk_bytes();

  Batch batch(params.n_batch);
  const auto prefill_begin = Clock::now();
  std::vector<llama_token> answer = {batch.next(context, options.prompt, 0, vocabulary)};
  const double prefill = seconds_since(prefill_begin), first = seconds_since(started);
  const uint64_t prompt_bytes = disk_bytes();
  const auto decode_begin = Clock::now();
  while (static_cast<int>(answer.size()) < options.predict) {
    answer.push_back(batch.next(context, {answer.back()}, prompt + static_cast<int>(answer.size()) - 1, vocabulary));
  }
  const double decode = seconds_since(decode_begin);
  const uint64_t all_bytes = disk_bytes();

  std::printf(
      "{\"load_seconds\": %.3f, \"prefill_tokens\": %d, \"prefill_seconds\": %.4f, "
      "\"prefill_per_second\": %.3f, \"decode_tokens\": %d, \"decode_seconds\": %.4f, "
      "\"decode_per_second\": %.3f, "
      "\"first_token_seconds\": %.3f, \"read_bytes\": %llu, \"read_bytes_load\": %llu, "
      "\"read_bytes_prefill\": %llu, \"read_bytes_decode\": %llu, \"peak_bytes\": %llu, \"tokens\": [",
      load, prompt, prefill, prompt / prefill, options.predict - 1, decode,
      decode > 0 ? (options.predict - 1) / decode : 0.0, first, static_cast<unsigned long long>(all_bytes),
      static_cast<unsigned long long>(load_bytes), static_cast<unsigned long long>(prompt_bytes - load_bytes),
      static_cast<unsigned long long>(all_bytes - prompt_bytes),
      static_cast<unsigned long long>(peak_resident_bytes()));
  for (size_t at = 0; at < answer.size(); ++at)
    std::printf("%s%d", at ? ", " : "", answer[at]);
  std::printf("]}\n");  // the model and its context end with the process
}
