#include "runtime/access/replaced_config.h"

#include <fmt/format.h>

#include "format/json.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kReplaced = "config.json";

class ReplacedConfig final : public format::Repository {
 public:
  ReplacedConfig(std::unique_ptr<format::Repository> stored, std::string text, std::string place)
      : stored_(std::move(stored)), text_(std::move(text)), place_(std::move(place)) {}

  [[nodiscard]] format::RepositoryKind kind() const override { return stored_->kind(); }
  [[nodiscard]] bool is_local() const override { return stored_->is_local(); }
  [[nodiscard]] std::optional<format::HubOrigin> hub_origin() const override { return stored_->hub_origin(); }
  [[nodiscard]] std::string description() const override { return stored_->description(); }
  [[nodiscard]] std::string locate(std::string_view path) const override {
    return path == kReplaced ? place_ : stored_->locate(path);
  }
  Result<std::unique_ptr<format::ByteSource>> open(std::string_view path, std::stop_token stop) override {
    return stored_->open(path, std::move(stop));
  }
  Result<std::unique_ptr<format::ByteSource>> open_known(std::string_view path, const format::KnownFile& known,
                                                         std::stop_token stop) override {
    return stored_->open_known(path, known, std::move(stop));
  }
  Result<std::unique_ptr<format::ReadFile>> open_file(std::string_view path, format::ReadMode mode) override {
    return stored_->open_file(path, mode);
  }
  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    if (path == kReplaced) return text_;
    return stored_->read_text(path, limit_bytes, std::move(stop));
  }
  Result<std::optional<std::vector<format::ListedFile>>> list(std::stop_token stop) override {
    return stored_->list(std::move(stop));
  }
  Result<std::optional<format::DeclaredFile>> declared(std::string_view path, std::stop_token stop) override {
    return stored_->declared(path, std::move(stop));
  }

 private:
  std::unique_ptr<format::Repository> stored_;
  std::string text_;
  std::string place_;
};

}  // namespace

Result<std::unique_ptr<format::Repository>> replace_config(std::unique_ptr<format::Repository> stored,
                                                           const format::Path& file, format::FileSystem& files) {
  auto text = format::read_text(files, file, format::kConfigDocument.bytes);
  if (!text) return text.error().in(fmt::format("--config {}", file.string()));
  return std::unique_ptr<format::Repository>(
      std::make_unique<ReplacedConfig>(std::move(stored), std::move(*text), file.string()));
}

}  // namespace dspack::runtime
