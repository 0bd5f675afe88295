// A packed part of a model together with the place that has the rest. Its small files are the part's; its weights are
// those of both.
// Threads: as Repository. Lifetime: owns both places and their catalogues; catalogues and storages that it opened must
// not outlive it. Errors: invalid (the first place is no part, the second has another checkpoint), not_found (nobody
// knows where the rest is), those of the two places.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "format/part/completion.h"
#include "format/source/repository.h"

namespace dspack::runtime {

/// In place of an address: where the part's manifest says that it was made from.
inline constexpr std::string_view kOriginWord = "origin";

/// What the part lacks.
struct AbsentWeights {
  uint64_t experts = 0;
  uint64_t expert_bytes = 0;
  uint64_t other_tensors = 0;
  uint64_t other_bytes = 0;
};

class CompletedPlace final : public format::Repository {
 public:
  using Opener = std::function<Result<std::unique_ptr<format::Repository>>(const std::string& place)>;
  /// `rest`: an address, or kOriginWord. Reads the catalogue of the part, then opens the other place.
  [[nodiscard]] static Result<std::unique_ptr<CompletedPlace>> open(std::unique_ptr<format::Repository> part,
                                                                    const std::string& rest, const Opener& opener,
                                                                    const std::stop_token& stop);

  /// The catalogue of both, once: reads that of the rest and compares. `layers`: of config.json, without MTP modules.
  [[nodiscard]] Result<format::Checkpoint> open_catalogue(uint32_t layers, const std::stop_token& stop);

  // After open_catalogue.
  [[nodiscard]] format::Repository& part() { return *part_; }
  [[nodiscard]] format::Repository& rest() { return *rest_; }
  [[nodiscard]] format::Checkpoint& part_catalogue() { return part_catalogue_; }
  [[nodiscard]] format::Checkpoint& rest_catalogue() { return *rest_catalogue_; }
  /// Of format::Completion.
  [[nodiscard]] const std::vector<uint32_t>& own() const { return own_; }
  [[nodiscard]] const std::vector<uint32_t>& absent() const { return absent_; }
  [[nodiscard]] AbsentWeights absent_weights() const;
  /// Whether the rest is the commit that the manifest names: then it needs no proof beyond its shape.
  [[nodiscard]] bool is_origin() const;
  /// The address of the rest, without secrets.
  [[nodiscard]] std::string rest_address() const;
  /// A difference between the two, for people.
  [[nodiscard]] Error another_checkpoint(const Error& difference) const;

  [[nodiscard]] format::RepositoryKind kind() const override { return part_->kind(); }
  [[nodiscard]] bool is_local() const override { return part_->is_local(); }
  [[nodiscard]] std::optional<format::HubOrigin> hub_origin() const override { return part_->hub_origin(); }
  [[nodiscard]] std::string description() const override { return part_->description(); }
  [[nodiscard]] std::string locate(std::string_view path) const override { return part_->locate(path); }
  [[nodiscard]] Result<std::unique_ptr<format::ByteSource>> open(std::string_view path, std::stop_token stop) override {
    return part_->open(path, std::move(stop));
  }
  [[nodiscard]] Result<std::unique_ptr<format::ReadFile>> open_file(std::string_view path,
                                                                    format::ReadMode mode) override {
    return part_->open_file(path, mode);
  }
  [[nodiscard]] Result<std::unique_ptr<format::ByteSource>> open_known(std::string_view path,
                                                                       const format::KnownFile& known,
                                                                       std::stop_token stop) override {
    return part_->open_known(path, known, std::move(stop));
  }
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override {
    return part_->read_text(path, limit_bytes, std::move(stop));
  }
  [[nodiscard]] Result<std::optional<std::vector<format::ListedFile>>> list(std::stop_token stop) override {
    return part_->list(std::move(stop));
  }
  [[nodiscard]] Result<std::optional<format::DeclaredFile>> declared(std::string_view path,
                                                                     std::stop_token stop) override {
    return part_->declared(path, std::move(stop));
  }

 private:
  CompletedPlace(std::unique_ptr<format::Repository> part, format::Checkpoint catalogue)
      : part_(std::move(part)), part_catalogue_(std::move(catalogue)) {}
  [[nodiscard]] Result<std::string> address_of_rest(const std::string& rest) const;

  std::unique_ptr<format::Repository> part_;
  std::unique_ptr<format::Repository> rest_;
  format::Checkpoint part_catalogue_;
  std::optional<format::Checkpoint> rest_catalogue_;
  std::vector<uint32_t> own_;
  std::vector<uint32_t> absent_;
};

}  // namespace dspack::runtime
