// How fast experts come into their slots, through the store that dsrun uses.
//
//   bench_io PLACE [auto|direct|buffered|mmap] [EXPERTS] [SEED] [EXPERTS AT ONCE] [BLOCK BYTES] [DEPTH]
//
// Requests the experts of one layer in a random order, EXPERTS AT ONCE (8) a time as the layers of a pass do, none
// twice, and computes nothing. Slots are used once before the clock runs, since fresh memory costs more than reading
// into it. PLACE: a folder, or http(s)://, which is then read with DEPTH connections. Prints one line of JSON.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "format/compressed/expanding_repository.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/access/io_choice.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {
namespace {

[[noreturn]] void fail(const Error& error) {
  fmt::print(stderr, "bench_io: {}\n", error.message);
  std::exit(1);
}

template <class T>
T value_of(Result<T> result) {
  if (!result) fail(result.error());
  return std::move(*result);
}

/// Ranges of an HTTP folder's files, read anew every time.
class HttpTier final : public Tier {
 public:
  HttpTier(format::Repository& repository, const format::Checkpoint& checkpoint)
      : repository_(repository), checkpoint_(checkpoint) {}

  const format::Checkpoint& checkpoint() const override { return checkpoint_; }
  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) override {
    TRY_ASSIGN(format::ByteSource * source, open(file, stop));
    return source->read(offset, into, stop);
  }
  Medium medium_of(ExpertKey /*expert*/) const override { return Medium::disk; }  // nothing is to be kept
  bool must_verify(ExpertKey /*expert*/) const override { return false; }
  Result<void> keep(ExpertKey /*expert*/, std::span<const TensorBytes> /*tensors*/,
                    const std::stop_token& /*stop*/) override {
    return {};
  }
  uint64_t block_bytes(uint32_t /*file*/) const override { return kLocalBlockBytes; }
  unsigned depth() const override { return kLocalDepth; }

 private:
  Result<format::ByteSource*> open(uint32_t file, const std::stop_token& stop) {
    const std::lock_guard lock(mutex_);
    auto& source = sources_[file];
    if (source == nullptr) {
      TRY_ASSIGN(source, repository_.open(checkpoint_.files()[file].path, stop));
    }
    return source.get();
  }

  format::Repository& repository_;
  const format::Checkpoint& checkpoint_;
  std::mutex mutex_;
  std::map<uint32_t, std::unique_ptr<format::ByteSource>> sources_;  // guarded by mutex_
};

/// Another storage with other blocks (0: its own) and another depth.
class TunedTier final : public Tier {
 public:
  TunedTier(Tier& real, uint64_t block_bytes, unsigned depth) : real_(real), block_bytes_(block_bytes), depth_(depth) {}
  const format::Checkpoint& checkpoint() const override { return real_.checkpoint(); }
  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) override {
    return real_.read(file, offset, into, stop);
  }
  Medium medium_of(ExpertKey expert) const override { return real_.medium_of(expert); }
  bool must_verify(ExpertKey expert) const override { return real_.must_verify(expert); }
  Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors, const std::stop_token& stop) override {
    return real_.keep(expert, tensors, stop);
  }
  uint64_t block_bytes(uint32_t file) const override {
    return block_bytes_ == 0 ? real_.block_bytes(file) : block_bytes_;
  }
  unsigned depth() const override { return depth_; }

 private:
  Tier& real_;
  uint64_t block_bytes_;
  unsigned depth_;
};

struct Settings {
  std::string place;
  IoMethod method = IoMethod::automatic;
  size_t experts = 96;
  uint64_t seed = 1;
  size_t at_once = 8;
  uint64_t block_bytes = 0;  // as the storage says
  unsigned depth = kLocalDepth;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  const auto number = [&](int at, uint64_t otherwise) {
    return argc > at ? std::strtoull(argv[at], nullptr, 10) : otherwise;
  };
  const auto method = argc > 2 ? parse_io_method(argv[2]) : IoMethod::automatic;
  if (argc < 2 || !method) {
    fmt::print(stderr,
               "bench_io PLACE [auto|direct|buffered|mmap] [EXPERTS] [SEED] [EXPERTS AT ONCE] [BLOCK BYTES] [DEPTH]\n");
    std::exit(2);
  }
  settings.place = argv[1];
  settings.method = *method;
  settings.experts = number(3, settings.experts);
  settings.seed = number(4, settings.seed);
  settings.at_once = number(5, settings.at_once);
  settings.block_bytes = number(6, settings.block_bytes);
  settings.depth = static_cast<unsigned>(number(7, settings.depth));
  return settings;
}

double processor_seconds() {
  struct ::rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const ::timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Bytes of the experts of `layer` that lie in `experts`, all brought into slots.
uint64_t bring(StreamedStore& store, LayerId layer, std::span<const ExpertId> experts, size_t at_once) {
  const uint64_t before = store.stats().bytes_read();
  for (size_t first = 0; first < experts.size(); first += at_once) {
    std::vector<ExpertDemand> demands;
    for (const ExpertId expert : experts.subspan(first, std::min(at_once, experts.size() - first)))
      demands.push_back({.expert = expert});
    const size_t count = demands.size();
    store.begin_pass({});
    const auto request = value_of(store.request(layer, std::move(demands)));
    for (size_t i = 0; i < count; ++i)
      (void)value_of(request->next({}));
  }
  return store.stats().bytes_read() - before;
}

int run(const Settings& settings) {
  const auto repository = format::make_expanding_repository(
      value_of(format::open_repository(settings.place, {}, format::posix_file_system())));
  const format::Checkpoint checkpoint = value_of(format::Checkpoint::open(*repository, 8, {}));
  const ModelConfig config = value_of(read_model_config(*repository, {}));
  const auto device = value_of(kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  std::vector<ExpertId> experts;
  const LayerId layer = checkpoint.experts().begin()->first.layer;
  for (const auto& [key, tensors] : checkpoint.experts())
    if (key.layer == layer) experts.push_back(key.expert);
  std::mt19937_64 random(settings.seed);
  std::ranges::shuffle(experts, random);
  const size_t warm_up = 2 * settings.at_once;  // as many as there are slots
  experts.resize(std::min(experts.size(), settings.experts + warm_up));

  IoChoice choice;
  std::unique_ptr<Tier> storage;
  if (repository->kind() == format::RepositoryKind::local) {
    choice = value_of(choose_io(*repository, checkpoint, settings.method, {.device = device.get()}, {}));
    storage = std::make_unique<FolderTier>(*repository, checkpoint, folder_options(choice, false));
  } else {
    storage = std::make_unique<HttpTier>(*repository, checkpoint);
  }
  TunedTier tuned(*storage, settings.block_bytes, settings.depth);
  const auto store = value_of(StreamedStore::make(
      *device, tuned,
      {.shape = {.hidden = config.hidden, .expert_inner = config.expert_inner, .quantization = config.quantization},
       .slots = warm_up,
       .policy = [] { return std::make_unique<LruPolicy>(); }}));
  bring(*store, layer, std::span(experts).first(warm_up), settings.at_once);

  const double processor = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  const uint64_t bytes = bring(*store, layer, std::span(experts).subspan(warm_up), settings.at_once);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const format::Json line = {{"experts", experts.size() - warm_up},
                             {"bytes", bytes},
                             {"seconds", seconds},
                             {"bytes_per_second", static_cast<double>(bytes) / seconds},
                             {"processor_seconds", processor_seconds() - processor},
                             {"io", to_json(choice)}};
  fmt::print("{}\n", line.dump());
  return 0;
}

}  // namespace
}  // namespace dspack::runtime

int main(int argc, char** argv) {
  return dspack::runtime::run(dspack::runtime::parse(argc, argv));
}
