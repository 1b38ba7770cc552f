package marshal.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Checkpoints of streams in a store with conditional puts: the range of a micro-batch is decided
 * once, however many drivers run the query. Spark's own managers look first and rename, or put,
 * then. For S3A alone; checkpoints elsewhere are Spark's own business.
 */
public class ConditionalPutCheckpoints extends FileSystemBasedCheckpointFileManager {
  private final FileSystem store;

  public ConditionalPutCheckpoints(Path path, Configuration settings) throws IOException {
    super(path, settings);
    store = path.getFileSystem(settings);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (!"s3a".equals(store.getScheme())) {
      return super.createAtomic(path, overwriteIfPossible);
    }
    return new Put(new ByteArrayOutputStream(), path, overwriteIfPossible);
  }

  private final class Put extends CancellableFSDataOutputStream {
    private final ByteArrayOutputStream content;
    private final Path path;
    private final boolean overwrite;
    private boolean ended;

    Put(OutputStream content, Path path, boolean overwrite) {
      super(content);
      this.content = (ByteArrayOutputStream) content;
      this.path = path;
      this.overwrite = overwrite;
    }

    @Override
    public void close() throws IOException {
      flush();
      if (!ended) {
        ended = true;
        ConditionalPut.put(store, path, content.toByteArray(), overwrite);
      }
    }

    @Override
    public void cancel() {
      ended = true;
    }
  }
}
