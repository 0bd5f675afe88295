// The order of tensors in files follows the order in which the source is read, so that no byte is read twice; and how
// far a shard has come survives whatever stops a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "reshard/run/repack.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::reading_order_test {

using namespace dspack;
using test::RawTensor;
using test::TempFolder;

namespace {

/// Experts of two layers, each with matrices of whole pages and small scales, in any order over three shards.
class OrderedCheckpoint {
 public:
  explicit OrderedCheckpoint(size_t vocabulary = 16) {
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      add(layer + "input_layernorm.weight", "BF16", {8}, 2);
      for (unsigned expert = 0; expert < 12; ++expert) {
        for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
          const std::string name = layer + "mlp.experts." + std::to_string(expert) + "." + part + ".weight";
          add(name, "F8_E4M3", {64, 64}, 1);
          add(name + "_scale_inv", "F32", {1, 1}, 4);
        }
      }
    }
    add("model.embed_tokens.weight", "BF16", {vocabulary, 32}, 2);
    add("lm_head.weight", "BF16", {16, 8}, 2);
  }

  void sort_as_text() { std::ranges::sort(tensors_, {}, &RawTensor::name); }
  void shuffle(unsigned seed) { std::ranges::shuffle(tensors_, std::mt19937(seed)); }

  void write(const TempFolder& folder) const {
    format::Json map = format::Json::object();
    for (size_t shard = 0; shard < 3; ++shard) {
      const auto at = [&](size_t number) {
        return tensors_.begin() + static_cast<std::ptrdiff_t>(tensors_.size() * number / 3);
      };
      const std::string name = test::SmallCheckpoint::shard_name(shard);
      const std::vector<RawTensor> own(at(shard), at(shard + 1));
      folder.write(name, test::safetensors_file(own));
      for (const RawTensor& tensor : own)
        map[tensor.name] = name;
    }
    folder.write("model.safetensors.index.json",
                 format::Json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}).dump());
    folder.write("config.json", R"({"model_type":"deepseek_v3"})");
  }

 private:
  void add(const std::string& name, const std::string& dtype, std::vector<uint64_t> shape, size_t element) {
    size_t bytes = element;
    for (const uint64_t dimension : shape)
      bytes *= dimension;
    tensors_.push_back({name, dtype, std::move(shape), test::pattern(bytes, ++seed_)});
  }

  std::vector<RawTensor> tensors_;
  unsigned seed_ = 0;
};

/// Stops the run when so many bytes have come, and keeps what it is told.
class StoppingProgress final : public format::Progress {
 public:
  explicit StoppingProgress(uint64_t stop_after = UINT64_MAX) : left_(static_cast<int64_t>(stop_after >> 1)) {
    if (stop_after < INT64_MAX) left_ = static_cast<int64_t>(stop_after);
  }
  using format::Progress::note;
  using format::Progress::started;
  void started(const format::Work& work) override {
    if (work.what == "packing") to_read = work.total_bytes;
  }
  void advanced(uint64_t bytes) override {
    if (left_.fetch_sub(static_cast<int64_t>(bytes)) <= static_cast<int64_t>(bytes)) stop_.request_stop();
  }
  void item_done() override {}
  void note(format::NoteKind, std::string_view text) override { notes += std::string(text) + "\n"; }
  void finished() override {}
  [[nodiscard]] std::stop_token stop() const { return stop_.get_token(); }

  uint64_t to_read = 0;
  std::string notes;

 private:
  std::atomic<int64_t> left_;
  std::stop_source stop_;
};

struct Lab {
  explicit Lab(const TempFolder& source, std::string_view by, unsigned jobs = 1)
      : repository(open_repository(source.path().string(), {}, format::posix_file_system()).value()) {
    options.recipe.by = reshard::parse_grouping(by).value();
    options.jobs = jobs;
    options.held_bytes = 16 * kPageBytes;  // so a shard with two matrices for a file waits for its turn
    options.first_record_bytes = 3000;     // in the midst of matrices
  }

  Result<reshard::RepackOutcome> run(const format::Path& out, StoppingProgress& progress,
                                     format::FileSystem& files = format::posix_file_system()) {
    options.out = out;
    TRY_ASSIGN(const reshard::RepackOutlook outlook, reshard::prepare_repack(*repository, options, {}));
    source_bytes = outlook.plan.source_bytes;
    return reshard::repack(outlook, *repository, options, files, progress, progress.stop());
  }

  std::unique_ptr<format::Repository> repository;
  reshard::RepackOptions options;
  uint64_t source_bytes = 0;
};

}  // namespace

TEST_CASE("order: whatever the order of the source, in every grouping no byte is read back, and jobs change nothing") {
  for (const std::string order : {"released", "text", "random"}) {
    OrderedCheckpoint checkpoint;
    if (order == "text") checkpoint.sort_as_text();
    if (order == "random") checkpoint.shuffle(5);
    const TempFolder source;
    const TempFolder target;
    checkpoint.write(source);
    for (const std::string by : {"expert", "expert:5", "layer", "shard:60000"}) {
      std::map<std::string, std::string> first;
      for (const unsigned jobs : {1U, 2U, 3U, 8U}) {
        CAPTURE(order);
        CAPTURE(by);
        CAPTURE(jobs);
        const format::Path out = target.path() / (by + std::to_string(jobs));
        StoppingProgress progress;
        REQUIRE(Lab(source, by, jobs).run(out, progress).value() == reshard::RepackOutcome::made);
        CHECK(progress.notes == "");
        if (first.empty()) first = test::tree(out);
        CHECK(test::tree(out) == first);
      }
    }
  }
}

TEST_CASE("order: in a file the tensors of whole pages come as the source is read, and then the others") {
  OrderedCheckpoint checkpoint;
  checkpoint.sort_as_text();
  const TempFolder source;
  checkpoint.write(source);
  const auto repository = open_repository(source.path().string(), {}, format::posix_file_system()).value();
  const auto catalogue = format::Checkpoint::open(*repository, 1, {}).value();
  for (const std::string by : {"expert", "layer", "shard:60000"}) {
    const auto plan = reshard::make_plan({.by = reshard::parse_grouping(by).value()}, catalogue).value();
    for (const format::PlannedFile& file : plan.files) {
      CAPTURE(file.path);
      using Key = std::tuple<bool, int, int64_t, uint64_t>;
      Key before{false, -1000, INT64_MIN, 0};
      for (const uint32_t tensor : file.tensors) {
        const format::TensorEntry& entry = catalogue.tensors()[tensor];
        const bool small = entry.range.size() % kPageBytes != 0;
        const Key key{small, small ? -static_cast<int>(bits_of(entry.dtype)) : 0, -static_cast<int64_t>(entry.file),
                      entry.range.begin};
        CHECK(before < key);
        before = key;
      }
    }
  }
}

TEST_CASE("resume: a run that is stopped has read nothing in vain, and the next one reads what is left") {
  const TempFolder source;
  const TempFolder target;
  OrderedCheckpoint().write(source);
  for (const std::string by : {"expert", "layer"}) {
    for (const unsigned jobs : {1U, 4U}) {
      CAPTURE(by);
      CAPTURE(jobs);
      Lab lab(source, by, jobs);
      StoppingProgress whole;
      REQUIRE(lab.run(target.path() / (by + std::to_string(jobs)), whole).has_value());
      const format::Path out = target.path() / (by + "-stopped");
      uint64_t left = lab.source_bytes;
      size_t runs = 0;
      for (bool done = false; !done; ++runs) {
        REQUIRE(runs < 1000);
        StoppingProgress progress(60'000);  // headers count, too
        const auto outcome = lab.run(out, progress);
        CHECK(progress.to_read <= left - (runs == 0 ? 0 : 20'000));
        left = progress.to_read;
        done = outcome.has_value();
        if (!done) CHECK(outcome.error().message == "stopped on request; 0 B of what was read will be read again");
      }
      CHECK(runs >= 4);
      CHECK(test::tree(out) == test::tree(target.path() / (by + std::to_string(jobs))));
      std::filesystem::remove_all(out);
    }
  }
}

TEST_CASE("resume: killed again and again in any rhythm, a run comes to its end") {
  const TempFolder source;
  const TempFolder target;
  OrderedCheckpoint(40'000).write(source);  // blocks of rows
  for (const std::string by : {"expert", "layer"}) {
    CAPTURE(by);
    Lab lab(source, by);
    StoppingProgress whole;
    REQUIRE(lab.run(target.path() / by, whole).has_value());
    const format::Path out = target.path() / (by + "-killed");
    uint64_t before = UINT64_MAX;
    size_t runs = 0;
    for (bool done = false; !done; ++runs) {
      REQUIRE(runs < 300);
      test::FaultyFileSystem dying(format::posix_file_system());
      StoppingProgress progress;
      // What a run that goes on does before it reads is not counted: a kill then is a run that has not begun.
      class Kill final : public format::Progress {
       public:
        Kill(test::FaultyFileSystem& files, StoppingProgress& to) : files_(files), to_(to) {}
        using format::Progress::note;
        using format::Progress::started;
        void started(const format::Work& work) override { to_.started(work); }
        void advanced(uint64_t bytes) override {
          if ((read_ += bytes) > 150'000) files_.fail_from(0);
        }
        void item_done() override {}
        void note(format::NoteKind, std::string_view /*text*/) override {}
        void finished() override {}

       private:
        test::FaultyFileSystem& files_;
        StoppingProgress& to_;
        uint64_t read_ = 0;
      } kill(dying, progress);
      lab.options.out = out;
      const auto outlook = reshard::prepare_repack(*lab.repository, lab.options, {}).value();
      const auto outcome = reshard::repack(outlook, *lab.repository, lab.options, dying, kill, {});
      CHECK(progress.to_read < before);
      before = progress.to_read;
      done = outcome.has_value();
    }
    CHECK(runs > 5);
    CHECK(test::tree(out) == test::tree(target.path() / by));
  }
}

}  // namespace dspack::reading_order_test
