// Sparse attention against two references that agree (tests/tools/family): the positions that each layer attends to,
// and the logits that follow, however a prompt is cut. tests/data/family/README.md says what the goldens hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <charconv>

#include "tests/runtime/support/choice_listener.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::sparse_golden_test {
namespace {

constexpr double kMaxNmse = 1e-8;
// Of scores that are closer, the references may choose others. No golden has such ones.
constexpr double kTie = 1e-5;

const std::vector<std::string> kVariants = {"v3.2-sparse", "glm-5", "glm-5.2"};

/// Of a variant's long prompt.
struct Golden {
  std::vector<uint32_t> tokens;
  test::StoredTensor logits;
  test::StoredTensor mtp_logits;       // empty: no module
  std::vector<uint32_t> chain_tokens;  // drafts after the prompt
  test::StoredTensor chain_logits;
  std::map<uint32_t, std::vector<uint16_t>> choices;  // by layer: [tokens - most, most]
  [[nodiscard]] size_t rows() const { return tokens.size(); }
};

Golden golden_of(const std::string& variant) {
  const std::string choices = "long.choices.";
  auto stored = test::read_safetensors(test::family_folder() / variant / "golden.safetensors");
  const auto tokens_of = [&](const char* name) {
    const auto tokens = stored[name].as<int32_t>();
    return std::vector<uint32_t>(tokens.begin(), tokens.end());
  };
  Golden golden{.tokens = tokens_of("long.tokens"),
                .logits = stored.at("long.logits"),
                .mtp_logits = stored["long.mtp_logits"],
                .chain_tokens = tokens_of("long.chain_tokens"),
                .chain_logits = stored["long.chain_logits"],
                .choices = {}};
  for (const auto& [name, tensor] : stored) {
    if (!name.starts_with(choices)) continue;
    uint32_t layer = 0;
    std::from_chars(name.data() + choices.size(), name.data() + name.size(), layer);
    REQUIRE(tensor.dtype == Dtype::u16);
    golden.choices[layer] = tensor.as<uint16_t>();
  }
  return golden;
}

/// What a test has heard, and of which layers.
struct Heard {
  const test::HeardChoices& choices;
  uint32_t most = 0;         // positions of a choice
  uint32_t layers_from = 0;  // by number; those before the end have been heard in order
  uint32_t layers_end = 0;
  uint32_t from = 0;  // position: earlier ones were not heard
};

/// A model whose choices are heard.
struct Rig {
  explicit Rig(const std::string& variant, test::RigOptions options = {})
      : heard(std::make_shared<test::HeardChoices>()), model(test::family_folder() / variant, [&] {
          options.around = [heard = heard](std::unique_ptr<kernels::Device> device) {
            return std::make_unique<test::ChoiceListener>(std::move(device), heard);
          };
          return options;
        }()) {}

  [[nodiscard]] const ModelConfig& config() { return model.model().config(); }
  [[nodiscard]] uint32_t most() { return config().indexer->most; }
  /// What was heard of the main model.
  [[nodiscard]] Heard in_layers(uint32_t from = 0) {
    return {.choices = *heard, .most = most(), .layers_from = 0, .layers_end = config().layers, .from = from};
  }
  [[nodiscard]] Heard in_module() {
    return {.choices = *heard,
            .most = most(),
            .layers_from = config().layers,
            .layers_end = config().layers + 1,
            .from = 0};
  }

  std::shared_ptr<test::HeardChoices> heard;
  test::RecordingModel model;
};

/// Of all positions that have a choice it is the references'; others attend to all up to their own.
void check_choices(const Heard& heard, const Golden& golden) {
  std::vector<std::span<const uint16_t>> wanted;
  for (const auto& [layer, chosen] : golden.choices) {
    if (layer >= heard.layers_from && layer < heard.layers_end) wanted.emplace_back(chosen);
  }
  REQUIRE_FALSE(wanted.empty());
  const auto end = static_cast<uint32_t>(heard.most + wanted.front().size() / heard.most);
  for (uint32_t position = heard.from; position < end; ++position) {
    CAPTURE(position);
    const auto found = heard.choices.at.find(position);
    if (position < heard.most && found == heard.choices.at.end()) continue;
    REQUIRE(found != heard.choices.at.end());
    REQUIRE(found->second.size() == wanted.size());
    for (size_t layer = 0; layer < wanted.size(); ++layer) {
      CAPTURE(layer);
      const std::vector<uint32_t>& chosen = found->second[layer];
      if (position < heard.most) {
        CHECK((chosen.size() == position + 1 && chosen.back() == position));
      } else {
        const auto row = wanted[layer].subspan(size_t{position - heard.most} * heard.most, heard.most);
        CHECK(std::ranges::equal(chosen, row));
      }
    }
  }
}

std::vector<float> logits_in_pieces(Rig& rig, std::span<const uint32_t> tokens, uint32_t piece) {
  Session session = rig.model.session();
  std::vector<float> logits;
  const auto done = session.logits(
      tokens, piece, [&](std::span<const float> rows) { logits.insert(logits.end(), rows.begin(), rows.end()); }, {});
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  return logits;
}

void check_logits(std::span<const float> got, const test::StoredTensor& wanted, uint32_t vocab,
                  const std::string& what) {
  const test::ErrorReport report = test::compare(got, wanted.as_double(), vocab);
  MESSAGE(what, ": ", report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(report.nmse <= kMaxNmse);
}

TEST_CASE("sparse goldens: prompts are three times as long as what is chosen, and nothing in them is a tie") {
  const format::Json facts = test::read_json(test::family_folder() / "family.json").at("variants");
  for (const std::string& variant : kVariants) {
    CAPTURE(variant);
    const Golden golden = golden_of(variant);
    const auto config = parse_model_config(test::read_file(test::family_folder() / variant / "config.json"));
    REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
    REQUIRE(config->indexer);
    CHECK(golden.rows() >= 3 * config->indexer->most);
    CHECK(facts.at(variant).at("prompts").at(0).at("index_margin") > kTie);
    for (uint32_t layer = 0; layer < config->layers + config->mtp_layers; ++layer) {
      CAPTURE(layer);
      CHECK(golden.choices.contains(layer) == config->has_indexer(LayerId(layer)));
    }
    CHECK(golden.mtp_logits.bytes.empty() == (config->mtp_layers == 0));
  }
}

TEST_CASE("sparse attention: choices and logits are the references', whole, in pieces, and token by token") {
  for (const std::string& variant : kVariants) {
    CAPTURE(variant);
    const Golden golden = golden_of(variant);
    Rig rig(variant);
    const uint32_t vocab = rig.config().vocab;
    for (const uint32_t piece : {0U, 64U, 7U, 1U}) {
      CAPTURE(piece);
      rig.heard->clear();
      const std::vector<float> got = logits_in_pieces(rig, golden.tokens, piece);
      check_logits(got, golden.logits, vocab, variant + ", pieces of " + std::to_string(piece));
      check_choices(rig.in_layers(), golden);
    }
  }
}

// What each mistake changes is in family.json; here it shows that the weights of every indexer are read.
TEST_CASE("sparse attention: without any tensor of an indexer the logits are others") {
  for (const std::string& variant : kVariants) {
    const Golden golden = golden_of(variant);
    for (const auto& [layer, choices] : golden.choices) {
      for (const char* part : {"wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight"}) {
        const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.indexer." + part;
        CAPTURE(name);
        test::AlteredVariant altered(variant);
        std::ranges::fill(altered.tensor(name).bytes, '\0');
        auto loaded = test::load_folder(altered.write());
        REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
        const auto& config = (*loaded)->model().config();
        const auto got = test::logits_of(**loaded, golden.tokens);
        const double nmse = test::compare(got, golden.logits.as_double(), config.vocab).nmse;
        if (layer < config.layers) CHECK(nmse > 1e3 * kMaxNmse);
        if (layer >= config.layers) CHECK(nmse <= kMaxNmse);  // the MTP module's: it drafts only
      }
    }
  }
}

TEST_CASE("sparse attention: waves and threads give the bits of one") {
  for (const std::string& variant : kVariants) {
    CAPTURE(variant);
    const Golden golden = golden_of(variant);
    Rig one(variant);
    const std::vector<float> wanted = logits_in_pieces(one, golden.tokens, 0);
    Rig waves(variant, {.threads = 2, .wave_rows = 5, .wave_tokens = 9});
    CHECK(test::first_difference(logits_in_pieces(waves, golden.tokens, 0), wanted) == wanted.size());
    check_choices(waves.in_layers(), golden);
  }
}

TEST_CASE("sparse attention: what was cut from a sequence is chosen no more") {
  for (const std::string& variant : kVariants) {
    CAPTURE(variant);
    const Golden golden = golden_of(variant);
    Rig rig(variant);
    for (const uint32_t kept : {rig.most() - 3, rig.most() + 10}) {
      CAPTURE(kept);
      Sequence sequence = rig.model.sequence();
      const auto pass = [&](std::span<const uint32_t> tokens) {
        const auto states =
            rig.model.model().forward({.sequence = sequence, .tokens = tokens}, rig.model.scratch(), {});
        REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
      };
      pass(std::span(golden.tokens).first(kept));
      pass(std::vector<uint32_t>(40, golden.tokens[5]));
      sequence.truncate(kept);
      rig.heard->clear();
      pass(std::span(golden.tokens).subspan(kept));
      check_choices(rig.in_layers(kept), golden);
    }
  }
}

/// What rounded keys change: choices of the variants' long prompts, and the logits that follow.
struct KeyError {
  size_t chosen = 0;
  size_t others = 0;  // chosen by rounded keys alone
  double nmse = 0;    // the worst of the variants
};

KeyError error_of_keys(Dtype dtype) {
  KeyError error;
  for (const std::string& variant : kVariants) {
    const Golden golden = golden_of(variant);
    Rig exact(variant);
    Rig rounded(variant, {.index_dtype = dtype});
    const std::vector<float> wanted = logits_in_pieces(exact, golden.tokens, 0);
    const std::vector<float> got = logits_in_pieces(rounded, golden.tokens, 0);
    error.nmse = std::max(
        error.nmse, test::compare(got, std::vector<double>(wanted.begin(), wanted.end()), exact.config().vocab).nmse);
    // Further layers see other values; the first one's choice shows the keys alone.
    for (const auto& [position, layers] : exact.heard->at) {
      const std::vector<uint32_t>& one = layers.front();
      const std::vector<uint32_t>& other = rounded.heard->at.at(position).front();
      std::vector<uint32_t> both;
      std::ranges::set_intersection(one, other, std::back_inserter(both));
      error.chosen += one.size();
      error.others += one.size() - both.size();
    }
  }
  return error;
}

TEST_CASE("sparse attention: keys of every type, and what rounding them changes") {
  for (const auto& [dtype, most_others] :
       {std::pair(Dtype::bf16, 0.01), std::pair(Dtype::f16, 0.002), std::pair(Dtype::f8_e4m3, 0.08)}) {
    CAPTURE(to_string(dtype));
    const KeyError error = error_of_keys(dtype);
    MESSAGE(to_string(dtype), ": ", error.others, " of ", error.chosen,
            " positions are others in the first layer; NMSE ", error.nmse);
    CHECK(static_cast<double>(error.others) <= most_others * static_cast<double>(error.chosen));
    CHECK(error.nmse < 1);
    // A position's key is stored once, whatever the pieces.
    for (const std::string& variant : kVariants) {
      const Golden golden = golden_of(variant);
      Rig whole(variant, {.index_dtype = dtype});
      Rig pieces(variant, {.threads = 2, .wave_rows = 5, .index_dtype = dtype});
      const std::vector<float> wanted = logits_in_pieces(whole, golden.tokens, 0);
      CHECK(test::first_difference(logits_in_pieces(pieces, golden.tokens, 7), wanted) == wanted.size());
    }
  }
}

// GLM-5.2's drafts attend to what the last row before them has chosen, V3.2's choose for themselves.
TEST_CASE("sparse attention: the MTP module chooses by an indexer of its own, at once and in pieces, and drafts") {
  for (const std::string variant : {"v3.2-sparse", "glm-5.2"}) {
    CAPTURE(variant);
    const Golden golden = golden_of(variant);
    for (const uint32_t most_rows : {128U, 7U}) {
      CAPTURE(most_rows);
      Rig rig(variant, {.max_rows = most_rows, .wave_rows = most_rows, .wave_tokens = most_rows});
      const ModelConfig& config = rig.config();
      const auto rows = static_cast<uint32_t>(golden.rows() - 1);
      const std::span<const uint32_t> tokens = golden.tokens;
      Sequence sequence = rig.model.sequence(Model::Drafting::mtp);
      const MtpModule& module = rig.model.mtp();
      for (uint32_t done = 0; done < rows; done += most_rows) {
        const auto states = rig.model.model().forward(
            {.sequence = sequence, .tokens = tokens.subspan(done, std::min(most_rows, rows - done))},
            rig.model.scratch(), {});
        REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
      }
      rig.heard->clear();
      std::vector<float> logits(size_t{rows} * config.vocab);
      const auto read = module.catch_up(
          sequence, rig.model.scratch(), tokens.subspan(1), MtpHidden::post_norm, {},
          [&](uint32_t first, const kernels::Rows& outputs) {
            module.logits(outputs, rig.model.scratch(),
                          std::span(logits).subspan(size_t{first} * config.vocab, size_t{outputs.rows} * config.vocab));
          });
      REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
      check_logits(logits, golden.mtp_logits, config.vocab, variant + ", MTP");
      check_choices(rig.in_module(), golden);
      kernels::Rows last = *read;
      std::vector<float> drafted(golden.chain_tokens.size() * config.vocab);
      for (size_t draft = 0; draft < golden.chain_tokens.size(); ++draft) {
        const auto next =
            module.chain(sequence, rig.model.scratch(), last, golden.chain_tokens[draft], MtpHidden::post_norm, {});
        REQUIRE_MESSAGE(next, (next ? "" : next.error().message));
        last = *next;
        module.logits(last, rig.model.scratch(), std::span(drafted).subspan(draft * config.vocab, config.vocab));
      }
      check_logits(drafted, golden.chain_logits, config.vocab, variant + ", drafts");
    }
  }
}

}  // namespace
}  // namespace dspack::runtime::sparse_golden_test
