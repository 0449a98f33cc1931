#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "handles.h"

namespace moert::capi {

bool Ticket::done() const {
  const MutexLock lock(&mu_);
  return done_;
}

absl::Status Ticket::Wait() const {
  const MutexLock lock(&mu_);
  while (!done_) changed_.Wait(&mu_);
  return status_;
}

void Ticket::Complete(absl::Status status) {
  const MutexLock lock(&mu_);
  status_ = std::move(status);
  done_ = true;
  changed_.NotifyAll();
}

// Outlives the queue if a completion destroys it: the thread holds a reference.
struct CallQueue::Shared {
  struct Job {
    std::function<absl::Status()> call;
    std::function<void(const absl::Status&)> done;
    std::shared_ptr<Ticket> ticket;
  };

  Mutex mu;
  CondVar changed;
  std::deque<Job> jobs ABSL_GUARDED_BY(mu);
  bool stop ABSL_GUARDED_BY(mu) = false;
  std::thread thread ABSL_GUARDED_BY(mu);

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
        const MutexLock lock(&self->mu);
        while (!self->stop && self->jobs.empty()) self->changed.Wait(&self->mu);
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
    const MutexLock lock(&shared_->mu);
    shared_->stop = true;
    thread = std::move(shared_->thread);
  }
  shared_->changed.NotifyAll();
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

absl::Status CallQueue::Submit(std::function<absl::Status()> call,
                               std::function<void(const absl::Status&)> done,
                               absl::FunctionRef<void(std::shared_ptr<Ticket>)> accepted) {
  auto ticket = std::make_shared<Ticket>();
  {
    const MutexLock lock(&shared_->mu);
    if (!shared_->thread.joinable()) {
      try {
        shared_->thread = std::thread(&Shared::Loop, shared_);
      } catch (const std::system_error& e) {
        return absl::ResourceExhaustedError(absl::StrCat("no thread for split calls: ", e.what()));
      }
    }
    shared_->jobs.push_back({std::move(call), std::move(done), ticket});
    accepted(std::move(ticket));  // the thread takes jobs under the lock
  }
  shared_->changed.NotifyOne();
  return absl::OkStatus();
}

}  // namespace moert::capi
