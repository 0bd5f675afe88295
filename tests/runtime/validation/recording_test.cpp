// Recordings written and read: every form of a tensor, files that are wrong, and that pieces make the same file.
#include "runtime/validation/recording.h"

#include <doctest/doctest.h>

#include "runtime/generate/session.h"
#include "runtime/validation/comparer.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::recording_test {
namespace {

struct Stored {
  const char* name;
  Dtype dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

format::Path write(const test::TempFolder& folder, const std::vector<Stored>& tensors) {
  std::vector<format::TensorInfo> infos;
  std::string data;
  for (const Stored& tensor : tensors) {
    infos.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .data = {.begin = data.size(), .end = data.size() + tensor.bytes.size()}});
    data += tensor.bytes;
  }
  folder.write("r.safetensors", format::write_header(infos) + data);
  return folder.path() / "r.safetensors";
}

Recording opened(const format::Path& path) {
  auto recording = Recording::open(format::posix_file_system(), path);
  REQUIRE_MESSAGE(recording, (recording ? "" : recording.error().message));
  return std::move(*recording);
}

format::Path record(test::RecordingModel& rig, const std::vector<uint32_t>& tokens, const format::Path& path,
                    std::vector<std::string> patterns = {}) {
  auto recorder = Recorder::create(rig.queue(), format::posix_file_system(), rig.model(),
                                   {.tokens = tokens, .patterns = std::move(patterns), .path = path});
  REQUIRE_MESSAGE(recorder, (recorder ? "" : recorder.error().message));
  Session session = rig.session();
  REQUIRE(session.logits(
      tokens, 0, [](std::span<const float>) {}, {}, recorder->get()));
  REQUIRE((*recorder)->seal({{"program", "test"}}));
  return path;
}

std::string error_of(test::RecordingModel& rig, const Recording& reference, const std::vector<uint32_t>& tokens) {
  Comparer comparer(rig.queue(), rig.model().config(), reference, static_cast<uint32_t>(tokens.size()), {});
  Session session = rig.session();
  const auto done = session.logits(
      tokens, 0, [](std::span<const float>) {}, {}, &comparer);
  if (!done) return done.error().message;
  const auto comparison = comparer.finish();
  return comparison ? "" : comparison.error().message;
}

TEST_CASE("recording: numbers of every width are read exactly") {
  const test::TempFolder folder;
  const Recording recording =
      opened(write(folder, {{"f64", Dtype::f64, {3}, bytes_of<double>({1e-300, -2.5, 3})},
                            {"f32", Dtype::f32, {1, 3}, bytes_of<float>({1, -2.5F, 1e-30F})},
                            {"bf16", Dtype::bf16, {3, 1}, bytes_of<uint16_t>({0x3f80, 0xc020, 0x4040})},
                            {"f16", Dtype::f16, {3}, bytes_of<uint16_t>({0x3c00, 0xc100, 0x4200})},
                            {"i64", Dtype::i64, {2}, bytes_of<int64_t>({-1, 1LL << 40})},
                            {"i32", Dtype::i32, {2}, bytes_of<int32_t>({-7, 8})},
                            {"u8", Dtype::u8, {2}, bytes_of<uint8_t>({0, 255})}}));
  const auto numbers = [&](const char* name) { return *recording.numbers(*recording.find(name), 0, 3); };
  CHECK(numbers("f64") == std::vector<double>{1e-300, -2.5, 3});
  CHECK(numbers("f32") == std::vector<double>{1, -2.5, 1e-30F});
  CHECK(numbers("bf16") == std::vector<double>{1, -2.5, 3});
  CHECK(numbers("f16") == std::vector<double>{1, -2.5, 3});
  CHECK(*recording.numbers(*recording.find("f64"), 1, 1) == std::vector<double>{-2.5});
  const auto integers = [&](const char* name) { return *recording.integers(*recording.find(name), 0, 2); };
  CHECK(integers("i64") == std::vector<int64_t>{-1, 1LL << 40});
  CHECK(integers("i32") == std::vector<int64_t>{-7, 8});
  CHECK(integers("u8") == std::vector<int64_t>{0, 255});
  CHECK(recording.find("other") == nullptr);
  CHECK_FALSE(*recording.input_ids());
}

TEST_CASE("recording: the tokens are found under both names, or the file is refused") {
  const test::TempFolder folder;
  const auto ids_of = [&](const Stored& tensor) { return opened(write(folder, {tensor})).input_ids(); };
  CHECK(**ids_of({"input_ids", Dtype::i64, {1, 2}, bytes_of<int64_t>({5, 7})}) == std::vector<uint32_t>{5, 7});
  CHECK(**ids_of({"model.embed_tokens.input.0", Dtype::i32, {2}, bytes_of<int32_t>({5, 7})}) ==
        std::vector<uint32_t>{5, 7});
  for (const Stored& wrong : std::vector<Stored>{{"input_ids", Dtype::i64, {2, 1}, bytes_of<int64_t>({5, 7})},
                                                 {"input_ids", Dtype::f32, {2}, bytes_of<float>({5, 7})},
                                                 {"input_ids", Dtype::i64, {0}, ""},
                                                 {"input_ids", Dtype::i64, {}, bytes_of<int64_t>({5})},
                                                 {"input_ids", Dtype::i64, {1}, bytes_of<int64_t>({-5})},
                                                 {"input_ids", Dtype::i64, {1}, bytes_of<int64_t>({1LL << 33})}}) {
    CHECK_FALSE(ids_of(wrong));
  }
}

TEST_CASE("recording: the modules of a language model within another are known by their own names") {
  const test::TempFolder folder;
  const std::string value = bytes_of<float>({1});
  const Recording recording = opened(write(folder, {{"language_model.lm_head.output", Dtype::f32, {1}, value},
                                                    {"language_model.twice", Dtype::f32, {1}, value},
                                                    {"twice", Dtype::f32, {1}, value}}));
  CHECK(recording.tensors().size() == 3);
  CHECK(recording.find("lm_head.output") != nullptr);
  CHECK(recording.find("twice") != nullptr);
  CHECK(recording.find("language_model.twice") != nullptr);
}

TEST_CASE("recording: what is no safetensors file is refused by name") {
  const test::TempFolder folder;
  CHECK_FALSE(Recording::open(format::posix_file_system(), folder.path() / "nothing"));
  for (const std::string& text : {std::string(), std::string("12345"), std::string(8, '\xff'), std::string(8, '\0'),
                                  std::string("\x02\0\0\0\0\0\0\0[]", 10), std::string("\x09\0\0\0\0\0\0\0{}", 10)}) {
    folder.write("bad", text);
    const auto recording = Recording::open(format::posix_file_system(), folder.path() / "bad");
    REQUIRE_FALSE(recording);
    CHECK(recording.error().message.find("bad") != std::string::npos);
  }
}

TEST_CASE("recording: shapes that contradict the model are one clear error") {
  const test::TempFolder folder;
  test::RecordingModel rig(test::tiny_folder());
  const std::vector<uint32_t> tokens = {0, 5};
  const auto refused = [&](const Stored& tensor, std::string_view part) {
    const std::string message = error_of(rig, opened(write(folder, {tensor})), tokens);
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find(tensor.name) != std::string::npos);
  };
  const std::string values = bytes_of(std::vector<float>(4 * 192));
  refused({"model.norm.output", Dtype::f32, {4, 192}, values}, "[2, 192]");
  refused({"model.norm.output", Dtype::f32, {192, 2}, values.substr(0, values.size() / 2)}, "[192, 2]");
  refused({"model.norm.output", Dtype::f32, {}, values.substr(0, 4)}, "[]");
  refused({"model.norm.output", Dtype::i32, {2, 192}, values.substr(0, values.size() / 2)}, "I32");
  refused({"model.layers.0.input.0", Dtype::f32, {4, 192}, values}, "[2, 192]");
  refused({"model.layers.1.mlp.gate.output.1", Dtype::i64, {1, 4}, bytes_of<int64_t>({1, 2, 3, 4})}, "2 tokens");
  refused({"model.layers.1.mlp.gate.output.1", Dtype::i64, {2, 4}, bytes_of<int64_t>({1, 2, 3, 64, 1, 2, 3, 4})}, "64");
  CHECK(error_of(rig, opened(write(folder, {{"other", Dtype::f32, {1}, bytes_of<float>({1})}})), tokens)
            .find("none of its 1 tensors") != std::string::npos);
}

TEST_CASE("recording: waves change no tensor, and patterns choose modules") {
  const test::TempFolder folder;
  const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
  test::RecordingModel whole(test::tiny_folder());
  const auto wanted = test::read_safetensors(record(whole, tokens, folder.path() / "whole"));
  test::RecordingModel waves(test::tiny_folder(), {.wave_rows = 5, .wave_tokens = 3, .slots = 2});
  const auto got = test::read_safetensors(record(waves, tokens, folder.path() / "waves"));
  REQUIRE(got.size() == wanted.size());
  for (const auto& [name, tensor] : wanted) {
    CAPTURE(name);
    CHECK(got.at(name).shape == tensor.shape);
    CHECK(got.at(name).bytes == tensor.bytes);
  }
  CHECK(wanted.at("input_ids").as<int64_t>() == std::vector<int64_t>(tokens.begin(), tokens.end()));
  CHECK(wanted.at("model.layers.3.self_attn.output.0").shape == std::vector<uint64_t>{1, tokens.size(), 192});

  const auto part = test::read_safetensors(record(whole, tokens, folder.path() / "part", {"*.q_a_proj", "lm_head"}));
  CHECK(part.size() == 1 + 2 * (5 + 1));
  CHECK(part.at("lm_head.output").bytes == wanted.at("lm_head.output").bytes);
  const auto none = Recorder::create(whole.queue(), format::posix_file_system(), whole.model(),
                                     {.tokens = tokens, .patterns = {"x*"}, .path = folder.path() / "none"});
  CHECK_FALSE(none);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "none"));
  CHECK_FALSE(std::filesystem::exists(folder.path() / ".none.tmp"));
}

}  // namespace
}  // namespace dspack::runtime::recording_test
