#include "call_queue.h"

#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exception_status.h"

namespace moert::capi {

bool Ticket::done() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return done_;
}

absl::Status Ticket::Wait() const {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [this] { return done_; });
  return status_;
}

void Ticket::Complete(absl::Status status) {
  const std::lock_guard<std::mutex> lock(mu_);
  status_ = std::move(status);
  done_ = true;
  changed_.notify_all();
}

// Outlives the queue when a completion destroys it: the thread holds a reference.
struct CallQueue::Shared {
  struct Job {
    std::function<absl::Status()> call;
    std::function<void(const absl::Status&)> done;
    std::shared_ptr<Ticket> ticket;
  };

  std::mutex mu;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool stop = false;
  std::thread thread;

  static absl::Status Run(const Job& job) {
    try {
      return job.call();
    } catch (...) {
      return ExceptionStatus("layer call");
    }
  }

  static void Loop(std::shared_ptr<Shared> self) {
    while (true) {
      Job job;
      {
        std::unique_lock<std::mutex> lock(self->mu);
        self->changed.wait(lock, [&] { return self->stop || !self->jobs.empty(); });
        if (self->jobs.empty()) return;
        job = std::move(self->jobs.front());
        self->jobs.pop_front();
      }
      const absl::Status status = Run(job);
      job.ticket->Complete(status);
      if (job.done != nullptr) job.done(status);
    }
  }
};

CallQueue::CallQueue() : shared_(std::make_shared<Shared>()) {}

CallQueue::~CallQueue() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(shared_->mu);
    shared_->stop = true;
    thread = std::move(shared_->thread);
  }
  shared_->changed.notify_all();
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

absl::StatusOr<std::shared_ptr<Ticket>> CallQueue::Submit(
    std::function<absl::Status()> call, std::function<void(const absl::Status&)> done) {
  auto ticket = std::make_shared<Ticket>();
  {
    const std::lock_guard<std::mutex> lock(shared_->mu);
    if (!shared_->thread.joinable()) {
      try {
        shared_->thread = std::thread(&Shared::Loop, shared_);
      } catch (const std::system_error& e) {
        return absl::ResourceExhaustedError(absl::StrCat("no thread for split calls: ", e.what()));
      }
    }
    shared_->jobs.push_back({std::move(call), std::move(done), ticket});
  }
  shared_->changed.notify_one();
  return ticket;
}

}  // namespace moert::capi
