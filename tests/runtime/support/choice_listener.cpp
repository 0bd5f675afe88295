#include "tests/runtime/support/choice_listener.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

namespace dspack::test {

namespace {

using kernels::Rows;
using kernels::Slice;

class ListeningQueue final : public kernels::Queue {
 public:
  ListeningQueue(std::unique_ptr<kernels::Queue> inner, std::shared_ptr<HeardChoices> heard)
      : inner_(std::move(inner)), heard_(std::move(heard)) {}

  void choose(const kernels::ChooseArgs& args) override {
    inner_->choose(args);
    REQUIRE(args.live.empty());  // a recorded choice is not there yet
    const kernels::Choice& choice = args.choice;
    std::vector<uint32_t> ids(size_t{args.rows} * choice.most);
    std::vector<uint32_t> counts(args.rows);
    inner_->download(std::as_writable_bytes(std::span(ids)), choice.ids);
    inner_->download(std::as_writable_bytes(std::span(counts)), choice.counts);
    inner_->synchronize();
    for (uint32_t row = 0; row < args.rows; ++row) {
      const uint32_t position = args.first_position + row;
      REQUIRE(counts[row] == std::min(position + 1, choice.most));
      const auto first = ids.begin() + static_cast<ptrdiff_t>(size_t{row} * choice.most);
      std::vector<uint32_t>& chosen = heard_->at[position].emplace_back(first, first + counts[row]);
      REQUIRE(std::ranges::adjacent_find(chosen, std::ranges::greater_equal()) == chosen.end());
      REQUIRE(chosen.back() <= position);
    }
  }

  // The rest is passed on as it is.
  void expect(const kernels::WorkspaceShape& largest) override { inner_->expect(largest); }
  void upload(Slice to, std::span<const std::byte> from) override { inner_->upload(to, from); }
  void download(std::span<std::byte> to, Slice from) override { inner_->download(to, from); }
  void copy(Slice to, Slice from, uint64_t bytes) override { inner_->copy(to, from, bytes); }
  void synchronize() override { inner_->synchronize(); }
  [[nodiscard]] std::optional<Error> failure() const override { return inner_->failure(); }
  [[nodiscard]] std::shared_ptr<kernels::Event> mark() override { return inner_->mark(); }
  void wait(const kernels::Event& event) override { inner_->wait(event); }
  void linear(const kernels::Weight& weight, const Rows& x, const Rows& y) override { inner_->linear(weight, x, y); }
  void gated_linear(const kernels::Weight& gate, const kernels::Weight& up, const Rows& x, const Rows& y,
                    const Rows& scratch, float limit) override {
    inner_->gated_linear(gate, up, x, y, scratch, limit);
  }
  void head_linear_transposed(const kernels::HeadLinearArgs& args) override { inner_->head_linear_transposed(args); }
  void head_linear(const kernels::HeadLinearArgs& args) override { inner_->head_linear(args); }
  void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) override {
    inner_->rms_norm(x, gain, epsilon, y);
  }
  void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) override {
    inner_->layer_norm(x, gain, bias, epsilon, y);
  }
  void rope(const kernels::RopeArgs& args) override { inner_->rope(args); }
  void mla_attend(const kernels::MlaAttendArgs& args) override { inner_->mla_attend(args); }
  void silu_multiply(const Rows& gate, const Rows& up, float limit) override { inner_->silu_multiply(gate, up, limit); }
  void add(const Rows& y, const Rows& x) override { inner_->add(y, x); }
  void route(const kernels::RouterArgs& args) override { inner_->route(args); }
  void run_experts(const kernels::ExpertsArgs& args) override { inner_->run_experts(args); }
  void run_expert_parts(const kernels::ExpertPartsArgs& args) override { inner_->run_expert_parts(args); }
  void store_rows(Slice to, Dtype dtype, const Rows& from, const kernels::LivePosition& live) override {
    inner_->store_rows(to, dtype, from, live);
  }
  void store_latents(Slice to, kernels::LatentShape shape, const Rows& from,
                     const kernels::LivePosition& live) override {
    inner_->store_latents(to, shape, from, live);
  }
  void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const kernels::LivePosition& live) override {
    inner_->store_fp8_rows(codes, scales, from, live);
  }
  void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override {
    inner_->gather_rows(to, from, rows);
  }
  void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override {
    inner_->scatter_rows(to, from, rows);
  }
  void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) override {
    inner_->combine(y, parts, weights, top_k);
  }
  void argmax(const Rows& x, Slice ids) override { inner_->argmax(x, ids); }
  void sample(const kernels::SampleArgs& args) override { inner_->sample(args); }
  [[nodiscard]] std::unique_ptr<kernels::Step> record(const std::function<void()>& operations) override {
    return inner_->record(operations);
  }
  void run(kernels::Step& step) override { inner_->run(step); }

 private:
  std::unique_ptr<kernels::Queue> inner_;
  std::shared_ptr<HeardChoices> heard_;
};

}  // namespace

std::unique_ptr<kernels::Queue> ChoiceListener::make_queue() {
  return std::make_unique<ListeningQueue>(inner_->make_queue(), heard_);
}

}  // namespace dspack::test
