// main of every test program: doctest's, which also names each case, its result and its processor time, for
// scripts/suite.py and for whoever reads the log of a program that hangs or dies; and which fails where no case runs.
//   CASE begun NAME
//   CASE passed|failed|skipped 0.012 s NAME
// A case that cannot run here prints "SKIPPED: reason" (MESSAGE) and returns; if that is all that cases did, the exit
// status is 77.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace dspack::test {
namespace {

constexpr int kSkipped = 77;  // CTest: SKIP_RETURN_CODE

struct Counts {
  unsigned run = 0, skipped = 0;
};
Counts& counts() {
  static Counts all;
  return all;
}

/// Of all threads of the process, not of its children.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

class CaseLog : public doctest::IReporter {
 public:
  explicit CaseLog(const doctest::ContextOptions& /*options*/) {}

  void test_case_start(const doctest::TestCaseData& data) override {
    name_ = data.m_name;
    is_skipped_ = false;
    begun_ = processor_seconds();
    std::printf("CASE begun %s\n", name_);
    std::fflush(stdout);
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    const char* result = !stats.testCaseSuccess ? "failed" : is_skipped_ ? "skipped" : "passed";
    std::printf("CASE %s %.3f s %s\n", result, processor_seconds() - begun_, name_);
    std::fflush(stdout);
    ++counts().run;
    counts().skipped += is_skipped_ ? 1 : 0;
  }
  void log_message(const doctest::MessageData& message) override {
    is_skipped_ = is_skipped_ || std::strncmp(message.m_string.c_str(), "SKIPPED: ", 9) == 0;
  }

  void report_query(const doctest::QueryData& /*query*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& /*stats*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*exception*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*data*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}

 private:
  const char* name_ = "";
  double begun_ = 0;
  bool is_skipped_ = false;
};

REGISTER_LISTENER("cases", 1, CaseLog);

}  // namespace
}  // namespace dspack::test

int main(int count, char** arguments) {
  using dspack::test::counts;
  doctest::Context context(count, arguments);
  const int status = context.run();
  if (context.shouldExit() || status != 0) return status;
  if (counts().run == 0) {
    std::fputs("FAILED: these filters leave no case to run\n", stderr);
    return EXIT_FAILURE;
  }
  return counts().skipped == counts().run ? dspack::test::kSkipped : EXIT_SUCCESS;
}
