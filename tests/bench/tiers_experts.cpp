#include "tests/bench/tiers_experts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "format/base/page_buffer.h"
#include "format/base/parallel.h"
#include "format/base/size.h"

namespace dspack::bench {
namespace {

constexpr uint32_t kBlock = 128;
constexpr const char* kFile = "model.safetensors";
constexpr unsigned kWriters = 4;
constexpr uint64_t kMeasuredBlocks = 1024;  // V3: 4 GB

struct Part {
  std::string name, dtype;
  uint64_t rows, cols, bytes;
};

std::array<Part, 6> parts_of(const ModelShape& shape, const std::string& expert) {
  const uint64_t matrix = uint64_t{shape.hidden} * shape.inner, scale = shape.scale_bytes();
  const uint64_t wide = ceil_div(shape.hidden, kBlock), narrow = ceil_div(shape.inner, kBlock);
  return {{{expert + ".gate_proj.weight", "F8_E4M3", shape.inner, shape.hidden, matrix},
           {expert + ".up_proj.weight", "F8_E4M3", shape.inner, shape.hidden, matrix},
           {expert + ".down_proj.weight", "F8_E4M3", shape.hidden, shape.inner, matrix},
           {expert + ".gate_proj.weight_scale_inv", "F32", narrow, wide, scale},
           {expert + ".up_proj.weight_scale_inv", "F32", narrow, wide, scale},
           {expert + ".down_proj.weight_scale_inv", "F32", wide, narrow, scale}}};
}

/// Ends on a page.
std::string header_of(const ModelShape& shape) {
  std::string json = "{";
  uint64_t at = 0;
  for (uint32_t layer = 0; layer < shape.routes.layers; ++layer) {
    for (uint32_t expert = 0; expert < shape.routes.experts; ++expert) {
      for (const Part& part : parts_of(shape, fmt::format("model.layers.{}.mlp.experts.{}", layer, expert))) {
        json += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{},{}],"data_offsets":[{},{}]}})", at == 0 ? "" : ",",
                            part.name, part.dtype, part.rows, part.cols, at, at + part.bytes);
        at += part.bytes;
      }
    }
  }
  json += "}";
  json.resize(round_up(sizeof(uint64_t) + json.size(), kPageBytes) - sizeof(uint64_t), ' ');
  const uint64_t length = json.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + json;
}

}  // namespace

uint64_t ModelShape::scale_bytes() const {
  return ceil_div(hidden, kBlock) * ceil_div(inner, kBlock) * sizeof(float);
}

uint64_t ModelShape::expert_bytes() const {
  return 3 * (uint64_t{hidden} * inner + scale_bytes());
}

GeneratedExperts::GeneratedExperts(const ModelShape& shape, const std::filesystem::path& folder, uint64_t on_disk)
    : shape_(shape), folder_(folder / fmt::format("bench-tiers-{}", ::getpid())) {
  make_pattern();
  format::FileSystem& system = format::posix_file_system();
  require(system.make_folders(folder_));
  try {
    write_file(on_disk);
    repository_ = required(format::open_repository(folder_.string(), {}, system));
    checkpoint_ = std::make_unique<format::Checkpoint>(required(format::Checkpoint::open(*repository_, 1, {})));
  } catch (...) {
    (void)system.remove_tree(folder_);
    throw;
  }
  std::array<std::byte, 1> byte{};
  const auto direct = repository_->open_file(kFile, format::ReadMode::direct);
  is_direct_ = direct && (*direct)->read(data_start_, byte);
  files_ = std::make_unique<runtime::FolderTier>(*repository_, *checkpoint_,
                                                 runtime::FolderTierOptions{.mode = format::ReadMode::direct});
}

GeneratedExperts::~GeneratedExperts() {
  (void)format::posix_file_system().remove_tree(folder_);
}

void GeneratedExperts::make_pattern() {
  pattern_.resize(shape_.expert_bytes());
  std::mt19937_64 random(1);
  const uint64_t matrices = 3ULL * shape_.hidden * shape_.inner;
  for (uint64_t i = 0; i < matrices; i += sizeof(uint64_t)) {
    // Exponents below that of NaN.
    const uint64_t eight = random() & 0xbfbfbfbfbfbfbfbfULL;
    std::memcpy(pattern_.data() + i, &eight, std::min<uint64_t>(sizeof(eight), matrices - i));
  }
  for (uint64_t i = matrices; i < pattern_.size(); i += sizeof(float)) {
    const float scale = 0.01F;
    std::memcpy(pattern_.data() + i, &scale, sizeof(scale));
  }
}

// Whole periods of experts that begin at the same place in a page, so that any expert may be read in place of another.
void GeneratedExperts::write_file(uint64_t on_disk) {
  const std::string header = header_of(shape_);
  const uint64_t expert = shape_.expert_bytes();
  const uint64_t period = kPageBytes / std::gcd(expert, kPageBytes);
  data_start_ = header.size();
  written_ = on_disk == 0 ? 0 : std::min(round_up(on_disk, period), shape_.experts());
  const auto file = required(format::posix_file_system().open_write(folder_ / kFile, format::OpenMode::truncate));
  require(file->resize(data_start_ + expert * shape_.experts()));
  require(file->write(0, std::as_bytes(std::span(header))));
  // Several at a time, from a copy that begins on a page.
  const uint64_t together = std::min(period, std::max<uint64_t>(1, written_));
  PageBuffer copies(together * expert);
  for (uint64_t i = 0; i < together; ++i)
    std::ranges::copy(pattern_, copies.bytes().subspan(i * expert).begin());
  const auto write = [&](uint64_t number, const std::stop_token&) {
    const uint64_t first = number * together, count = std::min(together, written_ - first);
    return file->write(data_start_ + first * expert, copies.bytes().first(count * expert));
  };
  require(run_jobs(ceil_div(written_, together), kWriters, write, {}));
  require(file->sync());
}

Result<void> GeneratedExperts::read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                    const std::stop_token& stop) {
  const uint64_t place = offset - data_start_, expert = shape_.expert_bytes();
  if (source_ == ExpertSource::disk) {
    const uint64_t number = place / expert % written_;
    return files_->read(file, data_start_ + number * expert + place % expert, into, stop);
  }
  std::copy_n(pattern_.begin() + static_cast<ptrdiff_t>(place % expert), into.size(), into.begin());
  return {};
}

double GeneratedExperts::disk_rate(std::span<std::byte> into) {
  const uint64_t block = std::min<uint64_t>(runtime::kLocalBlockBytes, shape_.expert_bytes());
  const uint64_t readers = std::min<uint64_t>(into.size() / block, runtime::kLocalDepth);
  const uint64_t blocks = std::min<uint64_t>(written_ * shape_.expert_bytes() / block, kMeasuredBlocks);
  const auto read = [&](uint64_t reader, const std::stop_token& stop) -> Result<void> {
    for (uint64_t i = reader; i < blocks; i += readers)
      TRY(files_->read(0, data_start_ + i * block, into.subspan(reader * block, block), stop));
    return {};
  };
  const auto start = std::chrono::steady_clock::now();
  require(run_jobs(readers, static_cast<unsigned>(readers), read, {}));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(blocks * block) / seconds;
}

}  // namespace dspack::bench
