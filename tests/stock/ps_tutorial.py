"""The tutorial "Distributed TensorFlow" of TensorFlow 1, on the digits of scikit-learn."""

import tensorflow as tf
from sklearn.datasets import load_digits

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated hostname:port pairs")
flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("train_steps", 300, "Steps of all workers together")
FLAGS = flags.FLAGS


def main(_):
    ps_hosts = FLAGS.ps_hosts.split(",")
    worker_hosts = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)

    if FLAGS.job_name == "ps":
        server.join()
    elif FLAGS.job_name == "worker":
        images, labels = load_digits(return_X_y=True)
        with tf.device(
            tf.train.replica_device_setter(worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster)
        ):
            x = tf.placeholder(tf.float32, [None, 64])
            y = tf.placeholder(tf.int64, [None])
            hid_w = tf.Variable(tf.truncated_normal([64, 64], stddev=0.1, seed=1), name="hid_w")
            hid_b = tf.Variable(tf.zeros([64]), name="hid_b")
            sm_w = tf.Variable(tf.truncated_normal([64, 10], stddev=0.1, seed=1), name="sm_w")
            sm_b = tf.Variable(tf.zeros([10]), name="sm_b")
            logits = tf.nn.xw_plus_b(tf.nn.relu(tf.nn.xw_plus_b(x, hid_w, hid_b)), sm_w, sm_b)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
            global_step = tf.train.get_or_create_global_step()
            train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=global_step)

        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
        with tf.train.MonitoredTrainingSession(
            master=server.target, is_chief=(FLAGS.task_index == 0), checkpoint_dir="train_logs", hooks=hooks
        ) as mon_sess:
            start = 0
            while not mon_sess.should_stop():
                batch = slice(start, start + 100)
                start = (start + 100) % 1500
                _, train_loss, train_accuracy = mon_sess.run(
                    [train_op, loss, accuracy], feed_dict={x: images[batch] / 16, y: labels[batch]}
                )
        print(f"worker {FLAGS.task_index}: loss {train_loss:.4f}, accuracy {train_accuracy:.4f}")


if __name__ == "__main__":
    tf.app.run()
