// A run touches the files of the experts that the router picks, and no other expert's.
#include <doctest/doctest.h>

#include <set>

#include "runtime/generate/session.h"
#include "runtime/generate/stats.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::runtime::expert_files_test {
namespace {

std::string expert_file(uint32_t layer, uint32_t expert) {
  return "experts/" + std::to_string(layer) + "-" + std::to_string(expert) + ".safetensors";
}

/// The tiny model with one file per expert, as an ordinary indexed checkpoint.
class SplitModel {
 public:
  SplitModel() {
    std::map<std::string, std::vector<test::RawTensor>> files;
    for (const auto& entry : std::filesystem::directory_iterator(test::tiny_folder())) {
      if (entry.path().extension() != ".safetensors") continue;
      for (auto& [name, tensor] : test::read_safetensors(entry.path())) {
        const format::TensorName place = format::parse_tensor_name(name);
        const std::string file =
            place.expert ? expert_file(place.layer->value, place.expert->value) : "dense.safetensors";
        files[file].push_back({name, std::string(to_string(tensor.dtype)), tensor.shape, std::move(tensor.bytes)});
      }
    }
    format::Json map = format::Json::object();
    for (const auto& [file, tensors] : files) {
      folder.write(file, test::safetensors_file(tensors));
      for (const test::RawTensor& tensor : tensors)
        map[tensor.name] = file;
    }
    folder.write("model.safetensors.index.json", format::Json({{"weight_map", map}}).dump());
    folder.write("config.json", test::read_file(test::tiny_folder() / "config.json"));
  }

  test::TempFolder folder;
};

Result<Answer> greedy(test::RecordingModel& rig, const test::GoldenPrompt& prompt) {
  Session session = rig.session();
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  return session.generate(prompt.tokens, {.max_tokens = 20, .end_tokens = {1}}, *sampler, [](uint32_t) { return true; },
                          {});
}

TEST_CASE("expert files: those opened are those of the routed experts; without the others the answer is the same") {
  const SplitModel split;
  const test::GoldenPrompt prompt = test::golden_prompts().front();
  test::RecordingModel rig(split.folder.path());
  CHECK(rig.store().stats().bytes_read() == 0);
  CHECK(rig.store().stats().opened_files.empty());
  const auto answer = greedy(rig, prompt);
  REQUIRE(answer);

  std::set<std::string> opened;
  for (const auto& [layer, files] : rig.store().stats().opened_files)
    opened.insert(files.begin(), files.end());
  std::set<std::string> routed;
  for (const auto& [layer, ids] : rig.recorder().routes()) {
    for (const uint32_t id : ids)
      routed.insert(expert_file(layer, id));
  }
  CHECK(opened == routed);
  CHECK(opened.size() < 4 * 64);
  CHECK(rig.store().stats().misses() == routed.size());

  // A catalogue of an ordinary checkpoint needs every header, so the files go after it was read.
  test::RecordingModel again(split.folder.path());
  for (uint32_t layer = 0; layer < 6; ++layer) {
    for (uint32_t expert = 0; expert < 64; ++expert) {
      if (!opened.contains(expert_file(layer, expert))) {
        std::filesystem::remove(split.folder.path() / expert_file(layer, expert));
      }
    }
  }
  const auto same = greedy(again, prompt);
  REQUIRE_MESSAGE(same, (same ? "" : same.error().message));
  CHECK(same->tokens == answer->tokens);
}

TEST_CASE("expert files: a missing or truncated one is an error that names layer, expert and file") {
  const SplitModel split;
  const test::GoldenPrompt prompt = test::golden_prompts().front();
  const auto activations = test::read_safetensors(test::golden_folder() / "activations.safetensors");
  const auto expert = static_cast<uint32_t>(activations.at("router.2.ids").as<int64_t>().front());
  const std::filesystem::path file = split.folder.path() / expert_file(2, expert);
  const std::string place = "layer 2, expert " + std::to_string(expert) + ": ";

  test::RecordingModel truncated(split.folder.path());
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const auto short_file = greedy(truncated, prompt);
  REQUIRE_FALSE(short_file);
  CAPTURE(short_file.error().message);
  CHECK(short_file.error().kind == ErrorKind::corrupt);
  CHECK(short_file.error().message.starts_with(place));
  CHECK(short_file.error().message.find(expert_file(2, expert)) != std::string::npos);

  std::filesystem::resize_file(file, std::filesystem::file_size(file) + 1);
  test::RecordingModel missing(split.folder.path());
  std::filesystem::remove(file);
  const auto no_file = greedy(missing, prompt);
  REQUIRE_FALSE(no_file);
  CAPTURE(no_file.error().message);
  CHECK(no_file.error().kind == ErrorKind::not_found);
  CHECK(no_file.error().message.starts_with(place));
  CHECK(no_file.error().message.find(expert_file(2, expert)) != std::string::npos);
}

TEST_CASE("statistics: speeds, bytes and files of a run") {
  auto loaded = LoadedModel::load(test::open_checkpoint(test::tiny_folder()),
                                  {.context = 64, .threads = 1, .instruction_set = {}}, {});
  REQUIRE(loaded);
  auto session = (*loaded)->start_session();
  REQUIRE(session);
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  const test::GoldenPrompt prompt = test::golden_prompts().front();
  REQUIRE(session->generate(prompt.tokens, {.max_tokens = 4, .end_tokens = {}}, *sampler, [](uint32_t) { return true; },
                            {}));
  const format::Json stats = to_json(collect_stats(**loaded, *session));
  CHECK(stats.at("context") == 64);
  CHECK(stats.at("prefill").at("tokens") == prompt.tokens.size());
  CHECK(stats.at("decode").at("tokens") == 3);
  CHECK(stats.at("prefill").at("tokens_per_second") > 0);
  CHECK(stats.at("bytes_read").at("experts") > 0);
  const std::set<uint32_t> rows(prompt.tokens.begin(), prompt.tokens.end());
  CHECK(stats.at("bytes_read").at("embedding") == (rows.size() + 3) * 192 * 2);  // each once a pass, in BF16
  CHECK(stats.at("experts").at("layers").size() == 4);
  CHECK(stats.at("experts").at("layers")[0].at("layer") == 1);
  CHECK(stats.at("experts").at("present") == 4 * 64);
  CHECK(stats.at("experts").at("read") == stats.at("experts").at("misses"));
  CHECK(stats.at("experts").at("layers")[0].at("read") > 0);
  CHECK(stats.at("experts").at("files") == 4);  // the MTP module's fifth is none of this run's
  CHECK(stats.at("memory_bytes").at("kv_cache") == 5 * 64 * 96 * 4);
}

}  // namespace
}  // namespace dspack::runtime::expert_files_test
