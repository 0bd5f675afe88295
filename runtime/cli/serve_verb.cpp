#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "format/base/foreign_text.h"
#include "format/base/result.h"
#include "format/cli/output.h"
#include "runtime/budget/request_memory.h"
#include "runtime/budget/system_memory.h"
#include "runtime/cli/generation_options.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"
#include "runtime/cli/prompt.h"
#include "runtime/cli/verbs.h"
#include "runtime/generate/find_identity.h"
#include "runtime/serve/access.h"
#include "runtime/serve/api.h"
#include "runtime/serve/host_address.h"
#include "runtime/serve/startup_gate.h"

namespace dspack::runtime {
namespace {

/// Environment variable with the key that clients must send, which keeps it off the command line.
constexpr char kApiKeyVariable[] = "DSPACK_API_KEY";

/// `place`: where the key was found, for errors.
Result<std::string> checked(std::string_view text, std::string_view place) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return invalid(fmt::format("{}: the key is blank; write one there, or leave it out to need none", place));
  }
  const std::string_view key = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  const bool is_one_line = std::ranges::none_of(key, [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; });
  if (is_one_line) return std::string(key);
  return invalid(fmt::format("{}: more than a line, or a control character; a key is sent in a header", place));
}

/// `option`: the value of --api-key, the key or @FILE; if absent, the variable is used. Empty: neither is set.
/// Surrounding blanks and line ends are stripped. A blank key is an error, since setting one asks for protection.
Result<std::string> find_api_key(const std::optional<std::string>& option) {
  if (option && option->starts_with('@')) {
    const std::string file = option->substr(1);
    TRY_ASSIGN(const std::string text, read_text_file(file));
    return checked(text, fmt::format("--api-key @{}", brief(file)));
  }
  if (option) return checked(*option, "--api-key");
  const char* const value = std::getenv(kApiKeyVariable);  // NOLINT(concurrency-mt-unsafe): main thread
  return value == nullptr ? std::string() : checked(value, kApiKeyVariable);
}

constexpr char kServeExamples[] = R"(Examples:
  dsrun serve ./ds-packed
  dsrun serve ./ds-packed --parallel 4 --ctx 16k
  dsrun serve ./ds-packed --host 0.0.0.0 --api-key @key.txt

It answers at /v1/chat/completions, /v1/completions and /v1/models as OpenAI's API does, at /v1/messages as Anthropic's,
and at /tokenize, /detokenize, /apply-template, /health, /props and /metrics; at / is a page for a browser, with chat
and the machine at work. While the model is loaded, /health has status 503 and says how far. Ctrl-C or SIGTERM: no more
requests are taken, and answers under way have 30 s to end; a second one ends the program at once.)";

constexpr uint32_t kMaxPlaces = 64;
constexpr std::chrono::seconds kDrainTime{30};

/// After a stop request, running requests get kDrainTime to end.
class Draining {
 public:
  Draining(const std::stop_token& asked, HttpServer& server, Scheduler& scheduler)
      : asked_(asked, [&server, &scheduler, this] {
          server.drain();
          scheduler.drain();
          clock_ = std::jthread([this](const std::stop_token& over) {
            std::mutex mutex;
            std::unique_lock lock(mutex);
            std::condition_variable_any never;
            if (never.wait_for(lock, over, kDrainTime, [] { return false; }) || over.stop_requested()) return;
            ended_.request_stop();
          });
        }) {}
  [[nodiscard]] std::stop_token ended() const { return ended_.get_token(); }

 private:
  std::stop_source ended_;
  std::jthread clock_;
  std::stop_callback<std::function<void()>> asked_;  // last: uses the others
};

/// nullptr: no cache.
Result<std::unique_ptr<PrefixCache>> make_cache(LoadedModel& loaded, const CacheOptions& options,
                                                const PrefixFolder::Log& log, const std::stop_token& stop) {
  if (options.ram_bytes == 0 && options.disk.empty()) return std::unique_ptr<PrefixCache>();
  TRY_ASSIGN(const KvIdentity identity, find_identity(loaded, stop));
  PrefixCache::Options cache{.memory_bytes = options.ram_bytes};
  if (!options.disk.empty()) {
    TRY_ASSIGN(cache.folder,
               PrefixFolder::open(format::posix_file_system(), options.disk, identity, options.disk_bytes, log));
  }
  return std::make_unique<PrefixCache>(identity, std::move(cache), log);
}

/// The requests' part of --ram, or of the available memory.
Result<RequestBounds> bounds_of_requests(const MemoryOptions& memory) {
  const auto system = read_system_memory();
  if (!memory.ram) return request_bounds(system ? system->available_bytes : UINT64_MAX);
  if (memory.ram->percent && !system) return system.error();
  return request_bounds(memory.ram->of(system ? system->physical_bytes : 0));
}

Result<int> run_serve(const ServeOptions& options, format::Process& process) {
  const std::stop_token stop = process.stop();
  TRY(Sampler::make(options.sampler.over()));
  TRY_ASSIGN(const std::string key, find_api_key(options.api_key));
  const auto addresses = resolve_host(options.host);
  if (!addresses) return addresses.error().in("--host");
  if (key.empty() && !std::ranges::all_of(*addresses, &is_loopback)) {
    return invalid(fmt::format("--host {}: other machines may only be served with --api-key", quote(options.host)));
  }
  TRY_ASSIGN(const RequestBounds bounds, bounds_of_requests(options.load.memory));
  HttpLimits limits = options.limits;
  limits.all_body_bytes = bounds.arriving_bytes;
  limits.body_bytes = std::min(limits.body_bytes, bounds.arriving_bytes);
  StartupGate gate(bounds.waiting_bytes);
  // Before the model is loaded, so that a port in use is reported at once.
  TRY_ASSIGN(auto listening,
             HttpServer::listen(*addresses, options.port, limits, cross_origin_headers(options.allow_origin),
                                {.answer =
                                     [&gate](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
                                       gate.handle(std::move(request), reply);
                                     },
                                 .is_brief = &StartupGate::is_brief}));
  // Answers all waiting requests before the server goes, however this function ends.
  const auto close = [](StartupGate* waited_at) { waited_at->close(); };
  const std::unique_ptr<StartupGate, decltype(close)> closing(&gate, close);
  const auto watch = [&gate](std::shared_ptr<format::Progress> shown) { return gate.watch(std::move(shown)); };
  LoadOptions load = options.load;
  load.beside_bytes = saturating_add(load.beside_bytes, bounds.all());
  TRY_ASSIGN(auto loaded, load_model(options.folder, load, stop, watch));
  TRY_ASSIGN(const TextModel text, load_text(*loaded, options.chat, stop));
  TRY_ASSIGN(const SamplerOptions sampling, choose_sampling(loaded->access().files(), options.sampler, stop));
  const auto log = [](const Error& error) { format::print_error("dsrun: " + error.message); };
  TRY_ASSIGN(const auto cache, make_cache(*loaded, options.cache, log, stop));
  TRY_ASSIGN(const auto scheduler, Scheduler::make(loaded->engine(), {.places = options.parallel,
                                                                      .waiting = options.waiting,
                                                                      .speculation = loaded->speculation(),
                                                                      .cache = cache.get()}));
  std::string name = options.model_name;
  if (name.empty()) name = std::filesystem::path(options.folder).lexically_normal().filename().string();
  if (name.empty() || name == ".") name = "model";
  MachineWatch machine(*loaded, *scheduler);
  Api api(text, *scheduler, machine,
          {.api_key = key,
           .host = options.host,
           .allow_origin = options.allow_origin,
           .model = name,
           .context = loaded->model().context(),
           .vocab = loaded->model().config().vocab,
           .layers = static_cast<uint32_t>(loaded->model().layer_map().size()),
           .end_tokens = loaded->eos_tokens(),
           .request_bytes = bounds.expanding_bytes,
           .cache_memory_bytes = options.cache.ram_bytes,
           .sampling = sampling,
           .template_arguments = options.chat.arguments(),
           .clock = &local_time},
          log);
  gate.open(api);
  const std::unique_ptr<HttpServer> server = std::move(listening);  // destroyed before the objects that its answers use
  format::print_error(fmt::format("{}: http://{}/v1 ({}, precision {}, {} positions, {} at once); Ctrl-C ends it",
                                  brief(name), host_and_port(options.host, server->port()),
                                  loaded->device().description(), kernels::to_string(loaded->chosen().precision()),
                                  loaded->model().context(), options.parallel));
  const Draining draining(stop, *server, *scheduler);
  scheduler->run(draining.ended());
  machine.end();
  TRY(loaded->flush_routes());
  return 0;
}

void add_serve_options(format::OptionTable& table, ServeOptions& options) {
  table.explain("Serves a model over HTTP, as OpenAI's and Anthropic's APIs do.");
  table.footer(kServeExamples);
  add_folder(table, options.folder);
  table.heading("Server");
  table.add("--host", "ADDRESS", options.host,
            "Where to listen, an address or a name: 127.0.0.1, this machine alone (default); localhost, the same over "
            "IPv6, too; 0.0.0.0, every network");
  table.add("--port", "N", options.port, format::between<uint16_t>(0, UINT16_MAX),
            "The port (default: 8080); 0: a free one");
  table.add(
      "--api-key", "KEY|@FILE", options.api_key,
      "What clients must send as their key (default: $DSPACK_API_KEY if that is set, else none). Better a file or the "
      "variable: a key that is written here is in your shell's history, and for a moment, until dsrun has wiped it, "
      "in the list of processes");
  table.add("--allow-origin", "ORIGIN", options.allow_origin,
            "A page that may ask from browsers, as https://chat.example.org, or * for all (default: none)");
  table.add("--model-name", "NAME", options.model_name, "How the model is called (default: the folder's name)");
  table.add("--parallel", "N", options.parallel, format::between(1U, kMaxPlaces),
            "Answers at once, each with room for --ctx positions (default: 1)");
  table.add("--waiting", "N", options.waiting, format::between(1U, 10'000U),
            "Requests that may wait for a place; others are refused with status 429 (default: 64)");
  add_chat_options(table, options.chat);
  const auto time = [](std::string_view text) -> Result<std::chrono::milliseconds> {
    TRY_ASSIGN(const double seconds, format::between(0.001, 3600.0)(text));
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  };
  table.dev("request-time", "SECONDS", options.limits.request_time, time,
            "in which a request must arrive (default: 60)");
  table.dev("send-time", "SECONDS", options.limits.send_time, time,
            "in which a client must take what is sent to it (default: 60)");
  table.dev("unsent", "SIZE", options.limits.unsent_bytes, format::parse_some_size,
            "of a stream, kept for a client that reads slowly (default: 4 MiB)");
  table.heading("Prefix cache");
  const auto size = [](std::string_view text) { return format::parse_large_size(text); };
  table.add("--cache-ram", "SIZE", options.cache.ram_bytes, size,
            "Memory for conversations that have lost their place to others (default: none); --ram counts it");
  auto folder =
      table.add("--cache-disk", "FOLDER", options.cache.disk,
                "A folder for all conversations: what a prompt has in common with them is not computed again, "
                "also after a restart");
  table
      .add("--cache-disk-size", "SIZE", options.cache.disk_bytes, size,
           "Bound of that folder (default: what leaves 5 % of the disk and 10 GB free)")
      .needs(folder);
  add_sampling_options(table, options.sampler);
  add_draft_options(table, options.drafts);
  options.load.device.precision.reset();  // --precision auto
  add_model_options(table, options.load);
  add_route_options(table, options.load);
}

}  // namespace

Result<void> ServeOptions::complete() {
  load.sequences = parallel;
  load.speculation = drafts.chosen();
  load.beside_bytes = cache.ram_bytes;
  return check_model_options(load);
}

format::Verb serve_verb() {
  return format::make_verb("serve", "Serve a model over HTTP: OpenAI's and Anthropic's API", add_serve_options,
                           run_serve);
}

}  // namespace dspack::runtime
