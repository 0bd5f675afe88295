#include "runtime/cli/answer_status.h"

#include <doctest/doctest.h>

namespace dspack::runtime::answer_status_test {
namespace {

TEST_CASE("answer status: a prompt has its layer, experts, rate and time left") {
  AnswerMoment moment{.token_seconds = 70, .layers = 61};
  CHECK(answer_status_line(moment) == "prompt: 1 min 10 s");
  moment.layer = 2;
  CHECK(answer_status_line(moment) == "prompt: layer 2 of 61");
  moment.seconds_left = 302;
  CHECK(answer_status_line(moment) == "prompt: layer 2 of 61, 5 min 02 s left");
  moment.layer = 12;
  moment.experts = 2310;
  moment.bytes = 101'700'000'000;
  moment.bytes_per_second = 1.2e9;
  moment.awaited = Awaited::disk;
  CHECK(answer_status_line(moment) == "prompt: layer 12 of 61, 2310 experts, 101.7 GB, 1.2 GB/s, 5 min 02 s left");
  moment.pass = 2;
  moment.passes = 3;
  CHECK(answer_status_line(moment) ==
        "prompt, part 2 of 3: layer 12 of 61, 2310 experts, 101.7 GB, 1.2 GB/s, 5 min 02 s left");
  moment.awaited = Awaited::network;
  moment.bytes_per_second = 0;
  moment.wait = format::TransferWatch::Wait{.silence_seconds = 12, .retry = 2, .retries = 11, .pause_seconds = 0};
  CHECK(answer_status_line(moment) ==
        "prompt, part 2 of 3: layer 12 of 61, 2310 experts, 101.7 GB, no byte for 12 s, retry 2 of 11");
}

TEST_CASE("answer status: a token that comes soon has a rate, one that does not has a reason") {
  AnswerMoment moment{.tokens = 1, .token_seconds = 0.5, .layer = 12, .layers = 61};
  CHECK(answer_status_line(moment) == "1 token");
  moment.tokens = 12;
  moment.tokens_per_second = 3.14;
  CHECK(answer_status_line(moment) == "12 tokens, 3.1 tokens/s");
  moment.tokens_per_second = 0.0421;
  CHECK(answer_status_line(moment) == "12 tokens, 0.042 tokens/s");
  moment.tokens_per_second = 3.14;
  moment.token_seconds = 2;
  CHECK(answer_status_line(moment) == "12 tokens, 3.1 tokens/s, computing layer 12 of 61");
  moment.awaited = Awaited::layer;
  CHECK(answer_status_line(moment) == "12 tokens, 3.1 tokens/s, reading layer 12 of 61");
  moment.awaited = Awaited::disk;
  moment.bytes = 800'000'000;
  CHECK(answer_status_line(moment) == "12 tokens, 3.1 tokens/s, experts from disk: 800.0 MB");
  moment.awaited = Awaited::network;
  moment.wait = format::TransferWatch::Wait{.silence_seconds = 1};
  CHECK(answer_status_line(moment) == "12 tokens, 3.1 tokens/s, experts from the network: 800.0 MB");
  moment.wait->silence_seconds = 31;
  moment.wait->retry = 1;
  moment.wait->retries = 11;
  moment.wait->pause_seconds = 4.2;
  CHECK(answer_status_line(moment) ==
        "12 tokens, 3.1 tokens/s, experts from the network: 800.0 MB, no byte for 31 s, retry 1 of 11 in 4 s");
  moment.layer = 0;
  moment.awaited = Awaited::computing;
  CHECK(answer_status_line(moment) == "12 tokens, 3.1 tokens/s, computing");
}

}  // namespace
}  // namespace dspack::runtime::answer_status_test
