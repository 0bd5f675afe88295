#include "format/source/replaced_text.h"

namespace dspack::format {
namespace {

class ReplacedText final : public Repository {
 public:
  ReplacedText(std::unique_ptr<Repository> stored, std::string path, Result<std::string> text, std::string place)
      : stored_(std::move(stored)), path_(std::move(path)), text_(std::move(text)), place_(std::move(place)) {}

  [[nodiscard]] RepositoryKind kind() const override { return stored_->kind(); }
  [[nodiscard]] bool is_local() const override { return stored_->is_local(); }
  [[nodiscard]] std::optional<HubOrigin> hub_origin() const override { return stored_->hub_origin(); }
  [[nodiscard]] std::string description() const override { return stored_->description(); }
  [[nodiscard]] std::string locate(std::string_view path) const override {
    return path == path_ ? place_ : stored_->locate(path);
  }
  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override {
    return stored_->open(path, std::move(stop));
  }
  Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                 std::stop_token stop) override {
    return stored_->open_known(path, known, std::move(stop));
  }
  Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override {
    return stored_->open_file(path, mode);
  }
  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    if (path == path_) return text_;
    return stored_->read_text(path, limit_bytes, std::move(stop));
  }
  Result<std::optional<std::vector<ListedFile>>> list(std::stop_token stop) override {
    return stored_->list(std::move(stop));
  }
  Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) override {
    return stored_->declared(path, std::move(stop));
  }

 private:
  std::unique_ptr<Repository> stored_;
  std::string path_;
  Result<std::string> text_;
  std::string place_;
};

}  // namespace

std::unique_ptr<Repository> replace_text(std::unique_ptr<Repository> stored, std::string path, Result<std::string> text,
                                         std::string place) {
  return std::make_unique<ReplacedText>(std::move(stored), std::move(path), std::move(text), std::move(place));
}

}  // namespace dspack::format
