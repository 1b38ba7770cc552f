package marshal.spark;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * The log of Delta's tables in a store with conditional puts: each version is committed once,
 * however many drivers write. Delta's own LogStore for S3 looks first and puts then, so that of two
 * drivers the second may overwrite the first one's commit.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {
  public ConditionalPutLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration settings)
      throws IOException {
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write(actions.next().getBytes(StandardCharsets.UTF_8));
      lines.write('\n');
    }
    ConditionalPut.put(path.getFileSystem(settings), path, lines.toByteArray(), overwrite);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration settings) {
    return false;
  }
}
