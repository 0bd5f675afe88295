#include "runtime/generate/kv_file.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "format/safetensors.h"
#include "runtime/generate/session.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::kv_file_test {
namespace {

void pass(test::RecordingModel& rig, Sequence& sequence, std::span<const uint32_t> tokens) {
  const auto done = rig.model().forward({.sequence = sequence, .tokens = tokens}, rig.scratch(), {});
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  REQUIRE(rig.queue().finish());
}

/// Logits after each of `tokens`, which are appended.
std::vector<float> logits_of(test::RecordingModel& rig, Sequence& sequence, std::span<const uint32_t> tokens) {
  const auto hidden = rig.model().forward({.sequence = sequence, .tokens = tokens}, rig.scratch(), {});
  REQUIRE(hidden);
  std::vector<float> logits(tokens.size() * rig.model().config().vocab);
  rig.picker().logits(hidden->final, logits);
  return logits;
}

KvBlock block_of(const Sequence& sequence, uint32_t first, uint32_t count) {
  auto block = sequence.read_block(first, count);
  REQUIRE(block);
  return *std::move(block);
}

TEST_CASE("KV blocks: a sequence goes on from them with the bits of its own passes, in every type, on every device") {
  const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
  REQUIRE(tokens.size() > 12);
  const std::span<const uint32_t> all = tokens;
  for (const bool is_deferred : {false, true}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3}) {
      CAPTURE(to_string(dtype));
      CAPTURE(is_deferred);
      test::RecordingModel rig(test::tiny_folder(), {.kv_dtype = dtype, .is_deferred = is_deferred});
      Sequence computed = rig.sequence();
      pass(rig, computed, all.first(10));
      const KvBlock first = block_of(computed, 0, 4);
      const KvBlock second = block_of(computed, 4, 6);
      const std::vector<float> wanted = logits_of(rig, computed, all.subspan(10));

      Sequence restored = rig.sequence();
      pass(rig, restored, all.first(2));  // of the first block the last two
      REQUIRE(restored.append(first, 4));
      REQUIRE(restored.append(second, 9));
      CHECK(restored.length() == 9);
      CHECK(block_of(restored, 0, 4).rows == first.rows);
      REQUIRE(restored.append(second, 10));
      CHECK(block_of(restored, 4, 6).rows == second.rows);
      CHECK(std::ranges::equal(restored.tokens(), all.first(10)));
      CHECK(logits_of(rig, restored, all.subspan(10)) == wanted);
    }
  }
}

TEST_CASE("KV blocks: a conversation that drafts says the same after them, and drafts from there on") {
  const auto prompt = test::golden_prompts().front();
  test::RecordingModel rig(test::tiny_folder(), {.context = 128});
  Sampler sampler = *Sampler::make({.temperature = 0});
  const GenerateOptions options{.max_tokens = 24, .end_tokens = {}};
  const auto say = [&](Session& session) {
    const auto answer = session.generate(prompt.tokens, options, sampler, [](uint32_t) { return true; }, {});
    REQUIRE(answer);
    return answer->tokens;
  };
  Session plain = rig.session();
  const std::vector<uint32_t> wanted = say(plain);
  const auto count = static_cast<uint32_t>(prompt.tokens.size());
  const KvBlock block = block_of(plain.sequence(), 0, count - 1);
  Session drafting = rig.session(SpeculationOptions{.drafts = 2});
  REQUIRE(drafting.sequence().append(block, count - 1));
  CHECK(say(drafting) == wanted);
  CHECK(drafting.speculator()->stats().drafted > 0);
  // Cut within the block, and from nothing.
  drafting.sequence().truncate(count / 2);
  CHECK(drafting.sequence().mtp()->length() == count / 2);
  CHECK(say(drafting) == wanted);
  drafting.clear();
  CHECK(say(drafting) == wanted);
}

struct Lab {
  test::RecordingModel rig{test::tiny_folder()};
  test::TempFolder folder;
  KvIdentity identity{.digest = format::sha256("this model"), .shape = rig.model().kv_shape(), .context = 128};
  KvBlock block;
  format::Path path = folder.path() / "a.safetensors";

  Lab() {
    Sequence sequence = rig.sequence();
    const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
    pass(rig, sequence, std::span(tokens).first(12));
    block = block_of(sequence, 4, 8);
  }
  [[nodiscard]] KvFileNotes notes() const { return {.parent = format::sha256("before"), .text = "some text"}; }
  [[nodiscard]] Result<KvFile> read(const KvIdentity& as) const {
    TRY_ASSIGN(const auto file, format::posix_file_system().open_read(path));
    return read_kv_file(*file, as);
  }
  void write() const { REQUIRE(write_kv_file(format::posix_file_system(), path, block, notes(), identity)); }
};

TEST_CASE("KV files: they read as they were written") {
  const Lab lab;
  lab.write();
  const auto read = lab.read(lab.identity);
  REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  CHECK(read->block.first == 4);
  CHECK(read->block.tokens == lab.block.tokens);
  CHECK(read->block.rows == lab.block.rows);
  CHECK(read->notes.parent == lab.notes().parent);
  CHECK(read->notes.text == "some text");
  REQUIRE(write_kv_file(format::posix_file_system(), lab.path, lab.block, {.parent = {}, .text = {}}, lab.identity));
  CHECK(lab.folder.read("a.safetensors").size() == kv_file_bytes(lab.identity, {0, 8}));
}

TEST_CASE("KV files: those of another model, of another version, longer than the context, are refused by name") {
  const Lab lab;
  lab.write();
  const auto refused = [&](const KvIdentity& as, ErrorKind kind, const char* word) {
    const auto read = lab.read(as);
    REQUIRE_FALSE(read);
    CHECK(read.error().kind == kind);
    CHECK_MESSAGE(read.error().message.find(word) != std::string::npos, read.error().message);
  };
  KvIdentity other = lab.identity;
  other.digest = format::sha256("another model");
  refused(other, ErrorKind::invalid, "another model");
  other.precision = kernels::Precision::bf16;
  refused(other, ErrorKind::invalid, "use --precision exact");
  other = lab.identity;
  other.context = 11;
  refused(other, ErrorKind::invalid, "--ctx 11");
  other = lab.identity;
  ++other.shape.layers;
  refused(other, ErrorKind::invalid, "tensors");
  std::string bytes = lab.folder.read("a.safetensors");
  bytes.replace(bytes.find("\"dspack_kv\":\"1\""), 15, "\"dspack_kv\":\"2\"");
  lab.folder.write("a.safetensors", bytes);
  refused(lab.identity, ErrorKind::unsupported, "version");
  lab.folder.write("a.safetensors", format::write_header({}));
  refused(lab.identity, ErrorKind::invalid, "not a saved KV cache");
}

TEST_CASE("KV files: the precision of the rows, which those of earlier versions do not name") {
  Lab lab;
  lab.identity.precision = kernels::Precision::bf16;
  lab.write();
  const auto precision = [&lab] { return kv_file_precision(*format::posix_file_system().open_read(lab.path).value()); };
  CHECK(precision() == kernels::Precision::bf16);
  lab.folder.write("a.safetensors", format::write_header({}, {{"dspack_kv", "1"}}));
  CHECK(precision() == kernels::Precision::exact);
  lab.folder.write("a.safetensors", format::write_header({}, {{"dspack_kv", "1"}, {"precision", "half"}}));
  CHECK_FALSE(precision());
  lab.folder.write("a.safetensors", format::write_header({}));
  CHECK_FALSE(precision());
}

TEST_CASE("KV files: cut anywhere, or with any byte changed, nothing of them is taken") {
  const Lab lab;
  lab.write();
  const std::string bytes = lab.folder.read("a.safetensors");
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 7) {
    CAPTURE(size);
    lab.folder.write("a.safetensors", bytes.substr(0, size));
    CHECK_FALSE(lab.read(lab.identity));
  }
  for (size_t at = 0; at < bytes.size(); at += at < 8 ? 1 : 1 + at / 11) {
    CAPTURE(at);
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    lab.folder.write("a.safetensors", changed);
    const auto read = lab.read(lab.identity);
    if (!read) continue;
    // A digit of "parent", which names what comes before, or a space behind the header.
    CHECK(read->block.tokens == lab.block.tokens);
    CHECK(read->block.rows == lab.block.rows);
  }
}

TEST_CASE("KV files: header and text have bounds, and reading asks for no more") {
  const Lab lab;
  lab.write();
  const std::string bytes = lab.folder.read("a.safetensors");
  const auto file_with = [&](uint64_t header_bytes) {
    // JSON may end in spaces: a header of any length that says the same.
    const uint64_t length = format::parse_header_length(bytes.substr(0, 8), bytes.size()).value();
    std::string longer =
        bytes.substr(0, 8 + length) + std::string(header_bytes - length, ' ') + bytes.substr(8 + length);
    for (size_t i = 0; i < 8; ++i)
      longer[i] = static_cast<char>(header_bytes >> (8 * i));
    lab.folder.write("a.safetensors", longer);
  };
  file_with(kMaxKvHeaderBytes);
  CHECK(lab.read(lab.identity));
  file_with(kMaxKvHeaderBytes + 8);
  const auto refused = lab.read(lab.identity);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("header is too long") != std::string::npos);
  CHECK_FALSE(is_kv_file(*format::posix_file_system().open_read(lab.path).value()));

  const auto with_text = [&](uint64_t text_bytes) {
    const std::string header = format::write_header(
        [&] {
          std::vector<format::TensorInfo> tensors{{"tokens", Dtype::u32, {8}, {0, 32}}};
          for (const CachePlane& plane : lab.identity.shape.planes) {
            const uint64_t layers = plane.layers_of(lab.identity.shape.layers);
            const uint64_t begin = tensors.back().data.end;
            tensors.push_back({fmt::format("kv.{}", plane.name),
                               Dtype::u8,
                               {layers, 8, plane.row_bytes},
                               {begin, begin + layers * 8 * plane.row_bytes}});
          }
          const uint64_t begin = tensors.back().data.end;
          tensors.push_back({"text", Dtype::u8, {text_bytes}, {begin, begin + text_bytes}});
          return tensors;
        }(),
        {{"dspack_kv", "1"},
         {"model", to_hex(lab.identity.digest)},
         {"parent", to_hex(lab.identity.digest)},
         {"first", "0"},
         {"sha256", to_hex(lab.identity.digest)}});
    const uint64_t data = 32 + lab.identity.shape.block_bytes({0, 8}) + text_bytes;
    return parse_kv_header(std::string_view(header).substr(8), header.size() + data, lab.identity);
  };
  CHECK(with_text(kMaxKvTextBytes).value().text_bytes == kMaxKvTextBytes);
  CHECK_FALSE(with_text(kMaxKvTextBytes + 1));
  CHECK_FALSE(with_text(uint64_t{1} << 40U));
}

TEST_CASE("KV files: nobody but their owner may read them") {
  const Lab lab;
  lab.write();
  CHECK((std::filesystem::status(lab.path).permissions() & std::filesystem::perms::mask) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("KV files: sizes that lie ask for no memory") {
  const Lab lab;
  const auto parse = [&](uint64_t positions, uint64_t layers, uint64_t first) {
    const CachePlane& plane = lab.identity.shape.planes.front();
    const uint64_t bytes = layers * positions * plane.row_bytes;
    const std::string header = format::write_header({{"tokens", Dtype::u32, {positions}, {0, positions * 4}},
                                                     {fmt::format("kv.{}", plane.name),
                                                      Dtype::u8,
                                                      {layers, positions, plane.row_bytes},
                                                      {positions * 4, positions * 4 + bytes}}},
                                                    {{"dspack_kv", "1"},
                                                     {"model", to_hex(lab.identity.digest)},
                                                     {"parent", to_hex(lab.identity.digest)},
                                                     {"first", fmt::format("{}", first)},
                                                     {"sha256", to_hex(lab.identity.digest)}});
    return parse_kv_header(std::string_view(header).substr(8), header.size() + positions * 4 + bytes, lab.identity);
  };
  const uint64_t layers = lab.identity.shape.layers;
  CHECK(parse(8, layers, 0));
  CHECK(parse(128, layers, 0));
  CHECK_FALSE(parse(0, layers, 0));
  CHECK_FALSE(parse(129, layers, 0));
  CHECK_FALSE(parse(8, layers, 121));
  CHECK_FALSE(parse(8, layers, uint64_t{1} << 63U));
  CHECK_FALSE(parse(8, layers + 1, 0));
  CHECK_FALSE(parse(8, 1'000'000'000'000, 0));
  CHECK_FALSE(parse(1'000'000'000, layers, 0));
}

}  // namespace
}  // namespace dspack::runtime::kv_file_test
