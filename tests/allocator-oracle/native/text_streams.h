// Buffered reading of requests and writing of log lines.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

[[noreturn]] inline void fail(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "allocator-oracle: %s\n", message.c_str());
  std::exit(3);
}

// The lines of standard input, without their ends.
class LineReader {
 public:
  // False at the end of the input. The line is valid until the next call.
  bool next(std::string_view& line) {
    for (;;) {
      for (size_t at = searched_; at < end_; ++at) {
        if (buffer_[at] == '\n') {
          line = {buffer_.data() + begin_, at - begin_};
          begin_ = searched_ = at + 1;
          return true;
        }
      }
      if (!fill()) {
        if (begin_ != end_) fail("the last request is incomplete");
        return false;
      }
    }
  }

 private:
  bool fill() {
    std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
    end_ -= begin_;
    searched_ = end_;
    begin_ = 0;
    if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
    const size_t read = std::fread(buffer_.data() + end_, 1, buffer_.size() - end_, stdin);
    end_ += read;
    return read > 0;
  }

  std::vector<char> buffer_ = std::vector<char>(1 << 16);
  size_t begin_ = 0, searched_ = 0, end_ = 0;
};

// The fields of one line, separated by single spaces.
class Fields {
 public:
  explicit Fields(std::string_view line) : line_(line), rest_(line) {}

  std::string_view word() {
    const size_t space = rest_.find(' ');
    const std::string_view word = rest_.substr(0, space);
    rest_ = space == std::string_view::npos ? std::string_view{} : rest_.substr(space + 1);
    if (word.empty()) fail("incomplete request: " + std::string(line_));
    return word;
  }

  uint64_t number() {
    const std::string_view text = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) fail("no number: " + std::string(line_));
    return value;
  }

  bool at_end() const { return rest_.empty(); }
  std::string rest() const { return std::string(rest_); }

 private:
  std::string_view line_, rest_;
};

// Writes log lines to standard output.
class LogWriter {
 public:
  void begin(char kind) { text_.push_back(kind); }
  void decimal(uint64_t value) { number(value, 10); }
  void hex(uint64_t value) { number(value, 16); }
  void text(std::string_view value) {
    text_.push_back(' ');
    text_.append(value);
  }
  void end() {
    text_.push_back('\n');
    if (text_.size() > (1 << 16)) flush();
  }
  void flush() {
    if (std::fwrite(text_.data(), 1, text_.size(), stdout) != text_.size()) std::exit(4);
    text_.clear();
    std::fflush(stdout);
  }

 private:
  void number(uint64_t value, int base) {
    char digits[24];
    const auto [end, _] = std::to_chars(digits, digits + sizeof digits, value, base);
    text_.push_back(' ');
    text_.append(digits, end);
  }

  std::string text_;
};
