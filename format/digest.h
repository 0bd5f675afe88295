// SHA-256 digests of tensors, experts, files and source shards.
// Threads: Digest is a plain value; a Sha256 belongs to one thread at a time. Source: FIPS 180-4, computed by OpenSSL;
// several digests of the same bytes side by side by our own block function (sha256_lanes.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dspack::format {

struct Digest {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Digest&) const = default;
};

[[nodiscard]] std::string to_hex(const Digest& digest);
/// 64 lower-case hexadecimal digits, or nullopt.
[[nodiscard]] std::optional<Digest> parse_digest(std::string_view hex);

/// An unfinished digest: the state needed to continue after the bytes taken so far.
struct Sha256State {
  std::array<uint32_t, 8> words{};  // a to h
  uint64_t bytes = 0;               // taken so far
  std::string rest;                 // the last bytes % 64 of them, not yet a whole block
  bool operator==(const Sha256State&) const = default;
};

/// "WORDS BYTES REST" in hexadecimal, decimal, hexadecimal.
[[nodiscard]] std::string to_text(const Sha256State& state);
/// nullopt: not a text that to_text writes.
[[nodiscard]] std::optional<Sha256State> parse_sha256_state(std::string_view text);

class Sha256 {
 public:
  Sha256();
  /// Continues from a saved state.
  explicit Sha256(const Sha256State& state);
  [[nodiscard]] Sha256State state() const;
  void update(std::span<const std::byte> bytes);
  /// The digest of all bytes so far; resets the object.
  [[nodiscard]] Digest finish();

 private:
  friend void update_together(std::span<Sha256* const> hashes, std::span<const std::byte> bytes);
  struct Context;
  struct Free {
    void operator()(Context* context) const;
  };
  std::unique_ptr<Context, Free> context_;
};

/// As update() of each hash; they may have taken different numbers of bytes. Three cost hardly more than one on a
/// processor with SHA instructions, because those of one digest wait for each other.
void update_together(std::span<Sha256* const> hashes, std::span<const std::byte> bytes);

[[nodiscard]] Digest sha256(std::string_view bytes);

}  // namespace dspack::format
