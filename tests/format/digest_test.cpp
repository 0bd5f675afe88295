#include <doctest/doctest.h>

#include <array>
#include <random>

#include "format/digest.h"
#include "format/sha256_lanes.h"

namespace dspack::digest_test {

using namespace dspack;
using format::Sha256;

namespace {

std::string random_text(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text)
    c = static_cast<char>(random());
  return text;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("digest: several together are the digests that each has alone, wherever each begins") {
  if (!format::has_sha256_lanes()) MESSAGE("SKIPPED: no SHA instructions here; the digests are computed one by one");
  for (const size_t size : {0UL, 1UL, 63UL, 64UL, 65UL, 127UL, 128UL, 129UL, 200UL, 1000UL, 4096UL, 100'003UL}) {
    const std::string text = random_text(size, static_cast<unsigned>(size));
    for (size_t count = 1; count <= 4; ++count) {
      for (const size_t shift : {0UL, 1UL, 40UL, 63UL, 64UL}) {
        std::array<Sha256, 4> hashes;
        std::vector<Sha256*> together;
        std::vector<std::string> alone;
        for (size_t i = 0; i < count; ++i) {
          alone.push_back(random_text(i * shift, 7));
          hashes[i].update(bytes_of(alone[i]));
          together.push_back(&hashes[i]);
        }
        update_together(together, bytes_of(text));
        update_together(together, bytes_of("then"));  // and they go on from there
        for (size_t i = 0; i < count; ++i)
          CHECK(hashes[i].finish() == format::sha256(alone[i] + text + "then"));
      }
    }
  }
}

TEST_CASE("digest: one that goes on from its state, by way of a text, is the same, wherever it was cut") {
  const std::string text = random_text(300, 5);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.update(bytes_of(text.substr(0, cut)));
    const std::string kept = to_text(hash.state());
    const auto state = format::parse_sha256_state(kept);
    REQUIRE(state == hash.state());
    CHECK(state->bytes == cut);
    Sha256 other(*state);
    other.update(bytes_of(text.substr(cut)));
    CHECK(other.finish() == format::sha256(text));
    hash.update(bytes_of(text.substr(cut)));  // asking has changed nothing
    CHECK(hash.finish() == format::sha256(text));
    for (const std::string& wrong : {kept + "0", kept + "00", kept.substr(1), "0" + kept, kept.substr(0, 64)})
      CHECK_FALSE(format::parse_sha256_state(wrong));
  }
}

TEST_CASE("digest: more than 512 MiB, where the bit count leaves 32 bits, in lanes and alone") {
  const std::string piece = random_text(1 << 20, 3);
  Sha256 a;
  Sha256 b;
  Sha256 alone;
  for (int i = 0; i < 513; ++i) {
    update_together(std::array{&a, &b}, bytes_of(piece));
    alone.update(bytes_of(piece));
  }
  const format::Digest digest = alone.finish();
  CHECK(a.finish() == digest);
  CHECK(b.finish() == digest);
}

}  // namespace dspack::digest_test
