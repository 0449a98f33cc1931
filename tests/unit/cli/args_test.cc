#include "cli/common/args.h"

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moert::cli {
namespace {

struct Options {
  std::string name = "default";
  int threads = 1;
  int64_t rows = 7;
  double rate = 0.5;
  std::vector<int> list = {1, 2};
  int64_t budget = 0;
  std::string backend = "cpu";
  bool quiet = false;
  std::string input;
  std::string output;
};

struct Parsed {
  Options options;
  absl::Status status;
  bool help = false;
};

Parsed Parse(std::vector<const char*> argv, bool require_name = false) {
  Parsed p;
  Options& o = p.options;
  ArgParser parser("tool", "does things");
  parser.AddString("name", &o.name, "a name");
  parser.AddInt("threads", &o.threads, "threads", 1, 64);
  parser.AddInt64("rows", &o.rows, "rows");
  parser.AddDouble("rate", &o.rate, "rate");
  parser.AddIntList("list", &o.list, "list", 0);
  parser.AddSize("budget", &o.budget, "budget");
  parser.AddChoice("backend", &o.backend, {"cpu", "cuda"}, "backend");
  parser.AddSwitch("quiet", &o.quiet, "quiet");
  parser.AddPositional("INPUT", &o.input, "input");
  parser.AddPositional("OUTPUT", &o.output, "output", false);
  if (require_name) parser.Require("name");
  p.status = parser.Parse(static_cast<int>(argv.size()), argv.data());
  p.help = parser.help_requested();
  return p;
}

bool Mentions(const absl::Status& status, const char* text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("every kind of flag is read, in both spellings") {
  const Parsed p =
      Parse({"--name", "x y", "--threads=3", "in", "--rows", "-5", "--rate=1e3", "--list", "4,0,9",
             "--budget", "1.5GiB", "--backend", "cuda", "--quiet", "--", "--out"});
  REQUIRE_OK(p.status);
  CHECK(p.options.name == "x y");
  CHECK(p.options.threads == 3);
  CHECK(p.options.rows == -5);
  CHECK(p.options.rate == 1000.0);
  CHECK(p.options.list == std::vector<int>{4, 0, 9});
  CHECK(p.options.budget == 1610612736);
  CHECK(p.options.backend == "cuda");
  CHECK(p.options.quiet);
  CHECK(p.options.input == "in");
  CHECK(p.options.output == "--out");
}

TEST_CASE("absent flags keep their defaults") {
  const Parsed p = Parse({"in"});
  REQUIRE_OK(p.status);
  CHECK(p.options.name == "default");
  CHECK(p.options.list == std::vector<int>{1, 2});
  CHECK_FALSE(p.options.quiet);
}

TEST_CASE("errors say what is legal") {
  const absl::Status unknown = Parse({"in", "--bogus"}).status;
  CHECK(unknown.code() == absl::StatusCode::kInvalidArgument);
  for (const char* flag : {"--bogus", "--name", "--threads", "--backend", "--quiet", "--help"}) {
    CHECK(Mentions(unknown, flag));
  }
  const absl::Status choice = Parse({"in", "--backend=tpu"}).status;
  CHECK((Mentions(choice, "tpu") && Mentions(choice, "cpu, cuda")));
  const absl::Status range = Parse({"in", "--threads", "65"}).status;
  CHECK((Mentions(range, "65") && Mentions(range, "1 to 64")));
}

TEST_CASE("what is nearly a flag, a value or a command is asked for") {
  CHECK(Mentions(Parse({"in", "--thread=2"}).status, "did you mean --threads?"));
  CHECK(Mentions(Parse({"in", "--qiuet"}).status, "did you mean --quiet?"));
  CHECK(Mentions(Parse({"in", "--backend=cdua"}).status, "did you mean cuda?"));
  CHECK_FALSE(Mentions(Parse({"in", "--bogus"}).status, "did you mean"));
  CHECK(DidYouMean("genrate", {"chat", "generate", "list"}) == "; did you mean generate?");
  CHECK(DidYouMean("frobnicate", {"chat", "generate", "list"}).empty());
}

TEST_CASE("malformed command lines are refused") {
  const std::vector<std::vector<const char*>> bad = {{},  // the required positional is missing
                                                     {"in", "out", "more"},  // too many positionals
                                                     {"in", "--threads"},    // no value
                                                     {"in", "--threads", "3x"},  // not an integer
                                                     {"in", "--threads=1", "--threads=1"},
                                                     {"in", "--quiet=yes"},
                                                     {"in", "--list", "1,,2"},
                                                     {"in", "--list", "1,-2"},
                                                     {"in", "--rate", "nan"},
                                                     {"in", "--budget", "12 parsecs"}};
  for (const auto& argv : bad) {
    CHECK(Parse(argv).status.code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK_FALSE(Parse({"in"}, /*require_name=*/true).status.ok());
  CHECK(Parse({"in", "--name", "n"}, /*require_name=*/true).status.ok());
}

TEST_CASE("help wins over missing arguments") {
  const Parsed p = Parse({"--help"}, /*require_name=*/true);
  CHECK(p.status.ok());
  CHECK(p.help);
}

TEST_CASE("sizes") {
  CHECK(*ParseSize("0") == 0);
  CHECK(*ParseSize("4096") == 4096);
  CHECK(*ParseSize("9223372036854775807") == INT64_MAX);
  CHECK(*ParseSize("17B") == 17);
  CHECK(*ParseSize("3KiB") == 3072);
  CHECK(*ParseSize("8GB") == 8000000000);
  CHECK(*ParseSize("8gb") == 8000000000);
  for (const char* text : {"8K", "8KiB", "8Ki", "8k", "8kib", "8ki", "8192", "8192b"}) {
    INFO(text);
    CHECK(ParseSize(text).value_or(-1) == 8192);
  }
  CHECK(*ParseSize("1.5G") == 1610612736);
  CHECK(*ParseSize("2M") == *ParseSize("2MiB"));
  CHECK(*ParseSize("2MB") == 2000000);
  CHECK(*ParseSize("1T") == int64_t{1} << 40);
  for (const char* bad :
       {"", "B", "iB", "4i", "4iB", "-1", "-1MiB", "MiB", "M", "1.5", "9223372036854775808",
        "8388608TiB", "nanGiB", "infGiB", "1 GiB x", "8P"}) {
    INFO(bad);
    CHECK_FALSE(ParseSize(bad).ok());
  }
}

TEST_CASE("help: -h, and the forms that man pages and completion are made of") {
  const Parsed p = Parse({"-h"}, /*require_name=*/true);
  CHECK(p.status.ok());
  CHECK(p.help);
  std::string mode = "a", path;
  ArgParser parser("tool-x do", "does - things");
  parser.AddChoice("mode", &mode, {"a", "b"}, "a mode");
  parser.AddOutput("out", &path, "a,b, or c");
  std::string strategy = "s";
  parser.AddString("strategy", &strategy, "a strategy");
  parser.Suggest("strategy", {"s", "t"});
  CHECK_THAT(parser.Help(), Catch::Contains("--mode a|b") && Catch::Contains("--force"));
  CHECK_THAT(parser.ManSection(), Catch::StartsWith(".SS tool\\-x do [flags]\n") &&
                                      Catch::Contains(".B \\-\\-mode\\fR a|b\n") &&
                                      Catch::Contains("a,\\:b, or c"));
  CHECK(parser.CompletionWords() == "--mode=a|b\n--out=FILE\n--force\n--strategy=s|t\n--help\n");
}

TEST_CASE("nothing is overwritten without --force") {
  const test::TempDir dir;
  const std::string file = dir / "file", missing = dir / "missing";
  test::WriteFile(file, "precious");
  const auto parse = [](std::vector<const char*> argv) {
    std::string path;
    ArgParser parser("tool", "does things");
    parser.AddOutput("out", &path, "a file");
    return parser.Parse(static_cast<int>(argv.size()), argv.data());
  };
  const absl::Status refused = parse({"--out", file.c_str()});
  CHECK(refused.code() == absl::StatusCode::kAlreadyExists);
  CHECK((Mentions(refused, file.c_str()) && Mentions(refused, "--force")));
  CHECK_FALSE(parse({"--out", dir.path().c_str()}).ok());
  CHECK(parse({"--out", file.c_str(), "--force"}).ok());
  for (const char* path : {missing.c_str(), "-", "/dev/null"}) {
    INFO(path);
    CHECK(parse({"--out", path}).ok());
  }
}

}  // namespace
}  // namespace moert::cli
